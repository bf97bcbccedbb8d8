# SPDX-License-Identifier: MIT
"""What a model's config.json says of its attention, for arrays that come without it."""

from __future__ import annotations

import json
import math

from .layer import CaptureError, Layer, require

UNSCALED = ("gemma3n", "gemma4")  # begin the model types whose queries are normed and not scaled further


class ModelConfig:
    """Of the text of a config.json; nothing of an empty one. CaptureError naming what it says wrong."""

    def __init__(self, text: str | None):
        try:
            config = json.loads(text or "{}")
            self._values = config.get("text_config") or config
            self._type = str(self._values.get("model_type", ""))
        except (ValueError, AttributeError, RecursionError) as error:
            raise CaptureError(f"the model's configuration cannot be read: {error}") from error

    def attributes(self, number: int) -> dict:
        """Of Layer: those of a layer's logits that are named."""
        found = {"softmax_scale": self._scale(), "softcap": self._number("attn_logit_softcapping"),
                 "sliding_window": self._window(number)}
        return {name: value for name, value in found.items() if value is not None}

    def _scale(self) -> float | None:
        multiplier, scalar = self._number("attention_multiplier"), self._number("query_pre_attn_scalar")
        if multiplier is not None:
            return multiplier
        if scalar is not None:
            return scalar ** -0.5
        return 1.0 if self._type.startswith(UNSCALED) else None

    def _window(self, number: int) -> int | None:
        types, window = self._values.get("layer_types"), self._values.get("sliding_window")
        if not isinstance(types, list) or number >= len(types) or types[number] != "sliding_attention":
            return None
        require(isinstance(window, int) and window >= 1, f"the model's configuration has sliding_window {window}, must "
                f"be at least 1: layer_types says that layer {number} has one")
        return window

    def has_windows_somewhere(self) -> bool:
        """Does it name a window, and not the layers that have it?"""
        values = self._values
        return bool(values.get("sliding_window")) and not values.get("layer_types") and values.get(
            "use_sliding_window") is not False

    def _number(self, name: str) -> float | None:
        value = self._values.get(name)
        require(value is None or isinstance(value, (int, float)) and math.isfinite(value) and value > 0,
                f"the model's configuration has {name} {value!r}, must be a positive number")
        return value if value is None else float(value)

    def rotary_dim(self, head_dim: int) -> int:
        """Channels that RoPE turns: all, unless fewer are named."""
        try:
            rope = self._values.get("rope_parameters") or {}
            share = rope.get("partial_rotary_factor") or self._values.get("partial_rotary_factor") or 1
            return int(self._values.get("rotary_dim") or head_dim * share)
        except (ValueError, TypeError, AttributeError, OverflowError) as error:
            raise CaptureError(f"the model's configuration does not say rotary_dim ({error}); "
                               "--rotary-dim gives it") from error


def fill(layer: Layer, config: ModelConfig, number: int, given, note) -> None:
    """Writes into a layer what the configuration says and nobody has given."""
    for name, value in config.attributes(number).items():
        if name not in given:
            setattr(layer, name, value)
            note(f"layer {number}: {name} is {value:.6g}, as the model's configuration says"
                 + ("; --softmax-scale gives another one" if name == "softmax_scale" else ""))
