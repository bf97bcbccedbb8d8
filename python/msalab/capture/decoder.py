# SPDX-License-Identifier: MIT
"""The part of a model of transformers that makes hidden states of tokens, and its layers."""

from __future__ import annotations

from collections import Counter

from torch import nn
from transformers import PreTrainedModel

from .other_kinds import other_kind


def decoder_of(model):
    """Of some models get_decoder() is another part, or there is none."""
    found = model.get_decoder() if hasattr(model, "get_decoder") else model
    return found if isinstance(found, PreTrainedModel) else model.base_model


def decoder_layers(model):
    return next((module for module in decoder_of(model).modules() if isinstance(module, nn.ModuleList)), ())


def attention_in(layer):
    """The module of a layer that attends to keys of tokens, of groups or latent ones; None: the layer is recurrent,
    convolves or has a feed-forward part alone."""
    return next((one for one in layer.modules() if hasattr(one, "num_key_value_groups") or other_kind(one)), None)


def without_attention(model) -> dict[int, str]:
    """Number of a layer that attends to no keys -> what it is: the type that the configuration names, or its class."""
    layers = decoder_layers(model)
    types = getattr(decoder_of(model).config.get_text_config(decoder=True), "layer_types", None) or ()
    named = len(types) == len(layers)
    return {number: types[number].replace("_", " ") if named else type(layer).__name__
            for number, layer in enumerate(layers) if attention_in(layer) is None}


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
