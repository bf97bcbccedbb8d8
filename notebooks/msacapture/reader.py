# SPDX-License-Identifier: MIT
"""Reads `msa-activations` version 1 (data/FORMAT.md), one layer at a time."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np

from .layer import FIELDS, Layer, bfloat16, require
from .writer import FORMAT, VERSION


class ActivationsReader:
    """The root attributes under their names, cu_seqlens int64 [S+1], tokens int32 [N] or None, and
    the numbers of the layers, ascending."""

    def __init__(self, path):
        require(Path(path).exists(), f"{path}: No such file or directory")
        try:
            self._file = h5py.File(path, "r")
        except OSError as error:
            require(False, f"{path}: {error}")
        root = self._file.attrs
        require(root.get("format") == FORMAT, f"{path}: format is {root.get('format')}, must be "
                f"{FORMAT}")
        require(int(root["format_version"]) == VERSION,
                f"{path}: format_version is {root['format_version']}, must be {VERSION}")
        self.path = path
        self.model_id, self.model_config, self.producer = (
            str(root[name]) for name in ("model_id", "model_config", "producer"))
        self.cu_seqlens = self._file["cu_seqlens"][:]
        self.tokens = self._file["tokens"][:] if "tokens" in self._file else None
        self.layers = sorted(map(int, self._file["layers"]))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def layer(self, number: int) -> Layer:
        """All tokens."""
        require(number in self.layers, f"{self.path}: has no layer {number}; there are: "
                f"{', '.join(map(str, self.layers))}")
        group = self._file[f"layers/{number}"]
        layer = Layer(**{name: _values(group[name]) for name in FIELDS if name in group},
                      softmax_scale=float(group.attrs["softmax_scale"]))
        set_attributes(layer, group.attrs)
        layer.weights = {name: _values(data) for name, data in group.get("weights", {}).items()}
        return layer

    def rope_type(self) -> str:
        """Of the model's configuration; "default" is RoPE of one theta."""
        config = json.loads(self.model_config)
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        return rope.get("rope_type") or rope.get("type") or "default"


ATTRIBUTES = {"q_state": str, "k_state": str, "softmax_scale": float, "rotary_dim": int,
              "rope_theta": float, "sliding_window": int, "attention_chunk": int, "softcap": float,
              "sinks": lambda values: np.asarray(values, np.float32)}


def set_attributes(layer: Layer, values):
    for name in ATTRIBUTES.keys() & values.keys():
        setattr(layer, name, ATTRIBUTES[name](values[name]))


def _values(dataset) -> np.ndarray:
    values = dataset[:]
    return values.view(bfloat16) if "logical_dtype" in dataset.attrs else values
