# SPDX-License-Identifier: MIT
"""Reads `msa-activations` version 1 (data/FORMAT.md), one layer at a time."""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from .. import hdf5
from .layer import (ATTRIBUTES, FIELDS, CaptureError, Layer, as_bfloat16, check, is_storable, native,
                    require)
from .writer import FORMAT, VERSION


class ActivationsReader:
    """The root attributes under their names, cu_seqlens int64 [S+1], tokens int32 [N] or None, text bytes
    with token_ends int64 [N] or None, and the numbers of the layers, ascending. CaptureError names the file, the
    object and the rule."""

    def __init__(self, path):
        require(Path(path).exists(), f"{path}: No such file or directory")
        self.path = path
        with self._reading("is no HDF5 file"):
            self._file = h5py.File(path, "r")
        try:
            self._read_root()
        except CaptureError:
            self._file.close()
            raise

    def _read_root(self):
        root = self._attributes("/")
        found = str(root.get("format"))
        require(found == FORMAT, f"{self.path}: format is {found}, must be {FORMAT}")
        require(str(root.get("format_version")) == str(VERSION), f"{self.path}: format_version is "
                f"{root.get('format_version')}, must be {VERSION}")
        for name in ("model_id", "model_config", "producer"):
            require(isinstance(root.get(name), str) and is_storable(root[name]),
                    f"{self.path}: / attribute {name} is {root.get(name)!r}, must be Unicode text")
            setattr(self, name, root[name])
        self.cu_seqlens = self._values("cu_seqlens")
        check_cu_seqlens(self.cu_seqlens, f"{self.path}: /cu_seqlens")
        self.tokens = self._values("tokens") if self._has("tokens") else None
        require(self.tokens is None or self.tokens.dtype.kind in "iu"
                and self.tokens.shape == (self.cu_seqlens[-1],),
                f"{self.path}: /tokens must hold one integer for each of the "
                f"{self.cu_seqlens[-1]} tokens")
        self._read_text()
        names = self._names("layers")
        for name in names:
            require(name.isdecimal() and name == str(int(name)),
                    f"{self.path}: /layers/{name} is no layer number")
        self.layers = sorted(map(int, names))

    def _read_text(self):
        self.text, self.token_ends = None, None
        found = [name for name in ("text", "token_ends") if self._has(name)]
        if not found:
            return
        require(len(found) == 2, f"{self.path}: has /{found[0]} alone; text and token_ends come together")
        text, ends, tokens = self._values("text"), self._values("token_ends"), self.cu_seqlens[-1]
        require(text.dtype == np.uint8 and text.ndim == 1, f"{self.path}: /text must be a list of bytes (uint8)")
        require(ends.dtype.kind in "iu" and ends.shape == (tokens,),
                f"{self.path}: /token_ends must hold one integer for each of the {tokens} tokens")
        self.text, self.token_ends = text.tobytes(), ends.astype(np.int64)
        for i in np.flatnonzero(np.diff(self.token_ends, prepend=0) < 0)[:1]:
            raise CaptureError(f"{self.path}: /token_ends, entry {i} is {ends[i]}, must not be below the entry before "
                               "it, nor below 0")
        require(ends[-1] == len(text), f"{self.path}: /token_ends ends at {ends[-1]}, /text has {len(text)} bytes")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()

    def layer(self, number: int) -> Layer:
        """All tokens."""
        require(number in self.layers, f"{self.path}: has no layer {number}; there are: "
                f"{', '.join(map(str, self.layers))}")
        group, place = f"layers/{number}", f"{self.path}: /layers/{number}"
        present = [name for name in FIELDS if self._has(f"{group}/{name}")]
        attributes = self._attributes(group)
        for name, names in (("object", present), ("attribute", attributes)):
            needed = {"object": "qkv", "attribute": ("q_state", "k_state", "softmax_scale")}[name]
            absent = [one for one in needed if one not in names]
            require(not absent, f"{place}: {name} {', '.join(absent)} is missing")
        layer = Layer(**{name: self._values(f"{group}/{name}") for name in present},
                      softmax_scale=1)
        set_attributes(layer, attributes, place)
        if self._has(f"{group}/weights"):
            layer.weights = {name: self._values(f"{group}/weights/{name}")
                             for name in self._names(f"{group}/weights")}
        check(layer, place, list(np.diff(self.cu_seqlens)))
        require(len(layer.q) == self.cu_seqlens[-1], f"{place}: q has {len(layer.q)} tokens, "
                f"/cu_seqlens ends at {self.cu_seqlens[-1]}")
        return layer

    def rope_type(self) -> str:
        """Of the model's configuration; "default" is RoPE of one theta."""
        try:
            config = json.loads(self.model_config)
            rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
            return rope.get("rope_type") or rope.get("type") or "default"
        except (ValueError, AttributeError, RecursionError) as error:
            raise CaptureError(f"{self.path}: / attribute model_config is no configuration: "
                               f"{error}") from error

    @contextmanager
    def _reading(self, fault: str):
        """The HDF5 library raises errors of many types on damaged files."""
        try:
            yield
        except CaptureError:
            raise
        except Exception as error:
            raise CaptureError(f"{self.path}: {fault}: {error}") from error

    def _object(self, name: str):
        return hdf5.checked(self._file[name], self._file, f"{self.path}: /{name.strip('/')}", CaptureError)

    def _attributes(self, name: str) -> dict:
        with self._reading(f"/{name.strip('/')} has unreadable attributes"):
            return {key: hdf5.attribute(value) for key, value in self._object(name).attrs.items()}

    def _names(self, name: str) -> list[str]:
        with self._reading(f"/{name} is no readable group"):
            return list(self._object(name).keys())

    def _has(self, name: str) -> bool:
        with self._reading(f"/{name} is unreadable"):
            return name in self._file

    def _values(self, name: str) -> np.ndarray:
        with self._reading(f"/{name} is no readable dataset"):
            dataset = self._object(name)
            require(isinstance(dataset, h5py.Dataset), f"{self.path}: /{name} is no dataset")
            logical = hdf5.attribute(dataset.attrs.get("logical_dtype"))
            if logical is None:
                return native(dataset[:])
            require(logical == "bfloat16" and dataset.dtype.kind == "u" and dataset.dtype.itemsize == 2,
                    f"{self.path}: /{name} is {dataset.dtype} with logical_dtype {logical}, must be uint16 with "
                    "bfloat16")
            return as_bfloat16(dataset[:])


def check_cu_seqlens(values: np.ndarray, place: str):
    """From 0, increasing; `place` begins the messages."""
    require(values.ndim == 1 and len(values) >= 2 and values.dtype.kind in "iu",
            f"{place}: must be a list of at least 2 integers")
    require(values[0] == 0, f"{place}: starts at {values[0]}, must start at 0")
    for i in np.flatnonzero(values[1:] <= values[:-1])[:1]:
        raise CaptureError(f"{place}: entry {i + 1} is {values[i + 1]}, must be above the one "
                           f"before it, {values[i]}")


def set_attributes(layer: Layer, values, place: str):
    """Those of ATTRIBUTES among `values`; `place` begins the messages."""
    for name in ATTRIBUTES.keys() & values.keys():
        kind, value = ATTRIBUTES[name], values[name]
        try:
            require(kind is not str or isinstance(value, str), f"{place}: {name} is {value}, "
                    "must be a text")
            setattr(layer, name, np.atleast_1d(np.asarray(value, np.float32)) if kind is np.ndarray
                    else kind(value))
            if kind is int and getattr(layer, name) != float(value):
                raise ValueError
        except (TypeError, ValueError, OverflowError) as error:
            shown = repr(value) if isinstance(value, str) else value
            raise CaptureError(f"{place}: {name} is {shown}, must be {NUMBERS[kind]}") from error


NUMBERS = {int: "an integer", float: "a number", np.ndarray: "a list of numbers"}
