# SPDX-License-Identifier: MIT
"""The part of a model of transformers that makes hidden states of tokens, and its layers."""

from __future__ import annotations

from collections import Counter

from torch import nn
from transformers import PreTrainedModel


def decoder_of(model):
    """Of some models get_decoder() is another part, or there is none."""
    found = model.get_decoder() if hasattr(model, "get_decoder") else model
    return found if isinstance(found, PreTrainedModel) else model.base_model


def decoder_layers(model):
    return next((module for module in decoder_of(model).modules() if isinstance(module, nn.ModuleList)), ())


def number_attention(model) -> None:
    """Modules that are told the number of their layer at each call (Zamba, Zamba2) have it from now on in layer_idx, as
    others do. One that stands in several layers has none."""
    layers = decoder_layers(model)
    times = Counter(module for layer in layers for module in layer.modules())
    for number, layer in enumerate(layers):
        for module in layer.modules():
            untold = hasattr(module, "layer_idx") and (module.layer_idx is None or module.layer_idx < 0)
            if untold and times[module] == 1:
                module.layer_idx = number
