# SPDX-License-Identifier: MIT
"""Writes `msa-activations` version 1 (data/FORMAT.md) piece by piece."""

from __future__ import annotations

import h5py
import numpy as np

from .layer import ATTRIBUTES, Layer, bfloat16, check, is_storable, require
from .partial_file import PartialFile

FORMAT, VERSION = "msa-activations", 1
CHUNK_TOKENS = 1024


class ActivationsWriter:
    """Writes to `path`.partial until finish() renames it (PartialFile); leaving the context before
    that removes it. An existing `path` is refused unless `overwrite`, and stays as it is until
    finish(). CaptureError when the file cannot be written."""

    def __init__(self, path, *, model_id: str, model_config: str, producer: str, cu_seqlens,
                 tokens=None, text: bytes | None = None, token_ends=None, overwrite: bool = False):
        self._tokens, self._lengths = int(cu_seqlens[-1]), np.diff(cu_seqlens)
        self._begins = np.asarray(cu_seqlens[:-1])
        root = {"format": FORMAT, "format_version": VERSION, "model_id": model_id,
                "model_config": model_config, "producer": producer}
        for name, value in root.items():
            require(name == "format_version" or is_storable(value),
                    f"{path}: {name} {value!r} cannot be stored, must be Unicode without NUL")
        self._disk = PartialFile(path, overwrite)
        self._file = h5py.File(self._disk, "w")
        self._file.attrs.update(root)
        self._file["cu_seqlens"] = np.asarray(cu_seqlens, np.int64)
        if tokens is not None:
            self._file["tokens"] = np.asarray(tokens, np.int32)
        if text:
            self._file["text"] = np.frombuffer(text, np.uint8)
            self._file["token_ends"] = np.asarray(token_ends, np.int64)
        self._file.create_group("layers")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self._file.close()
        self._disk.__exit__(*error)

    def write(self, number: int, first_token: int, layer: Layer, source=None):
        """The tokens from `first_token` on of layer `number`; the first call fixes its sizes.
        `source`: the file that they are from, for messages."""
        place = f"layer {number}" if source is None else f"{source}: layer {number}"
        check(layer, place)
        if str(number) not in self._file["layers"]:
            self._create(number, layer)
        group = self._file[f"layers/{number}"]
        for name in ATTRIBUTES:
            now, before = getattr(layer, name), group.attrs.get(name)
            require(np.array_equal(now, before), f"{place}: {name} is {now}, of earlier tokens "
                    f"{before}; such sequences go into files of their own")
        for name, array in layer.arrays().items():
            dataset = group[name]
            stored = bfloat16 if "logical_dtype" in dataset.attrs else dataset.dtype
            require(array.shape[1:] == dataset.shape[1:] and layer.element() == stored,
                    f"{place}: {name} is {layer.element()} {array.shape[1:]} per token, of "
                    f"earlier tokens {stored} {dataset.shape[1:]}")
            array = array.astype(stored, copy=False)
            first = first_token if name != "qsa_k" else self._pieces(layer, self._begins < first_token)
            dataset[first:first + len(array)] = array.view(np.uint16) if stored == bfloat16 else array
            self._disk.check()

    def _create(self, number: int, layer: Layer):
        group = self._file.create_group(f"layers/{number}")
        group.attrs.update(layer.attributes())
        element = layer.element()
        for name, array in layer.arrays().items():
            rows = self._tokens if name != "qsa_k" else self._pieces(layer, slice(None))
            shape = (rows, *array.shape[1:])
            chunks = (max(1, min(rows, CHUNK_TOKENS)), *(1,) * (len(shape) - 2), shape[-1])
            self._dataset(group, name, element, shape=shape, chunks=chunks, fletcher32=True)
        for name, array in layer.weights.items():
            self._dataset(group, f"weights/{name}", array.dtype,
                          data=array.view(np.uint16) if array.dtype == bfloat16 else array)

    def _pieces(self, layer: Layer, sequences) -> int:
        """The number of qsa_k keys of these sequences, each of which is written as a whole."""
        return int((self._lengths[sequences] // layer.qsa_compress).sum())

    @staticmethod
    def _dataset(group, name: str, element, **options):
        stored = np.dtype(np.uint16) if element == bfloat16 else element
        dataset = group.create_dataset(name, dtype=stored, **options)
        if element == bfloat16:
            dataset.attrs["logical_dtype"] = "bfloat16"

    def finish(self):
        """Waits until the bytes are on the device, then gives the file its name."""
        self._file.close()
        self._disk.finish()
