# SPDX-License-Identifier: MIT
"""Reads `msa-results` version 1 (data/FORMAT.md). Letters and shapes are those of that page.

Opening checks format and version; datasets are read when asked for, and selections only in the
pieces that the caller takes, so that nothing of size N x N is ever in memory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np

FORMAT, VERSION = "msa-results", 1


class ResultsError(Exception):
    """The file is not what was asked for; the text names file, object and rule."""


@dataclass(frozen=True)
class LayerSizes:
    query_heads: int
    kv_heads: int
    head_dim: int
    index_dim: int
    block_size: int
    blocks: int
    tokens: int
    softmax_scale: float

    @property
    def group_size(self) -> int:
        return self.query_heads // self.kv_heads


@dataclass(frozen=True)
class Queries:
    """Where each analysed query sits; packed order, int64 [Nq] each."""

    token: np.ndarray
    position: np.ndarray
    sequence: np.ndarray

    def rows_of(self, sequence: int) -> slice:
        """The rows of one sequence: contiguous, positions ascending."""
        low, high = np.searchsorted(self.sequence, [sequence, sequence + 1])
        return slice(int(low), int(high))


@dataclass(frozen=True)
class Popularity:
    queries_per_block: np.ndarray  # int64 [Hkv, blocks of all sequences]
    gini: float
    chunks: int
    mma_fill: float


def _text(value) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class ResultsFile:
    """A file of the format, open for reading; use it in a `with` statement."""

    group = ""  # of the layers
    text = staticmethod(_text)

    def __init__(self, path):
        self.path = Path(path)
        if not self.path.is_file():
            raise ResultsError(f"{self.path}: no such file")
        try:
            self._file = h5py.File(self.path, "r")
        except OSError as error:
            raise ResultsError(f"{self.path}: not a readable HDF5 file ({error})") from error
        try:
            self._check_format()
        except ResultsError:
            self.close()
            raise

    def _check_format(self):
        found = _text(self._file.attrs.get("format", "(none)"))
        if found != FORMAT:
            raise ResultsError(f'{self.path}: attribute format is "{found}", must be "{FORMAT}"')
        version = _text(self._file.attrs.get("format_version", "(none)"))
        if version != str(VERSION):
            raise ResultsError(f"{self.path}: format_version is {version}, must be {VERSION}")
        if not self.layers:
            raise ResultsError(f"{self.path}: /{self.group} is empty; at least one layer is needed")

    def close(self):
        self._file.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _at(self, name: str):
        if name not in self._file:
            raise ResultsError(f"{self.path}: /{name} is missing")
        return self._file[name]

    def _names(self, name: str) -> list[str]:
        return list(self._file[name]) if name in self._file else []

    # What was run

    @cached_property
    def run(self) -> dict[str, str]:
        """The attributes of /run as text."""
        return {name: _text(value) for name, value in self._at("run").attrs.items()}

    def run_json(self, name: str) -> dict | list:
        """A JSON attribute of /run: argv, options, definitions or inputs; {} where absent."""
        try:
            return json.loads(self.run.get(name, "{}"))
        except json.JSONDecodeError as error:
            raise ResultsError(f"{self.path}: /run attribute {name} is no JSON: {error}") from error

    @cached_property
    def layers(self) -> list[int]:
        return sorted(int(name) for name in self._names(self.group))


class Results(ResultsFile):
    """One results file of msa-analyze."""

    group = "layers"

    # What there is

    @cached_property
    def selectors(self) -> list[str]:
        """Selectors with metrics, the oracle first, then by name."""
        names = [name for name in self._names("metrics") if name != "dense"]
        return sorted(names, key=lambda name: (name != "oracle", name))

    def curve_selectors(self, layer: int) -> list[str]:
        names = [name for name in self._names("curves") if str(layer) in self._file["curves"][name]]
        return sorted(names, key=lambda name: (name != "oracle", name))

    def sizes(self, layer: int) -> LayerSizes:
        attributes = self._at(f"layers/{layer}").attrs
        fields = LayerSizes.__dataclass_fields__
        missing = [name for name in fields if name not in attributes]
        if missing:
            raise ResultsError(f"{self.path}: /layers/{layer} lacks attribute {missing[0]}")
        cast = {name: float if name == "softmax_scale" else int for name in fields}
        return LayerSizes(**{name: cast[name](attributes[name]) for name in fields})

    # What was found

    def queries(self, layer: int) -> Queries:
        return Queries(*(self._at(f"queries/{layer}/{name}")[:]
                         for name in ("token", "position", "sequence")))

    def ids(self, selector: str, layer: int) -> h5py.Dataset:
        """int32 [Nq, Hkv, k], on disk: take rows of it."""
        return self._at(f"select/{selector}/{layer}/ids")

    def rule(self, selector: str) -> str:
        """What the selector does, as the run described it; empty where it did not."""
        return _text(self.ids(selector, self.layers[0]).attrs.get("description", ""))

    def top_k(self, selector: str, layer: int) -> int:
        return int(self.ids(selector, layer).shape[2])

    def metric(self, selector: str, layer: int, name: str) -> np.ndarray:
        """float64 [Hkv] or [Hq]; selector may be `dense`."""
        return self._at(f"metrics/{selector}/{layer}/{name}")[:]

    def average(self, selector: str, layer: int, name: str) -> float:
        """A macro average or a count, as stored beside the metrics."""
        attributes = self._at(f"metrics/{selector}/{layer}").attrs
        if name not in attributes:
            raise ResultsError(f"{self.path}: /metrics/{selector}/{layer} lacks attribute {name}")
        return attributes[name].item()

    def curve(self, selector: str, layer: int) -> tuple[np.ndarray, np.ndarray]:
        """(k int64 [m], mass kept float64 [m])"""
        group = self._at(f"curves/{selector}/{layer}")
        return group["k"][:], group["mass_kept"][:]

    def popularity(self, selector: str, layer: int) -> Popularity:
        group = self._at(f"popularity/{selector}/{layer}")
        attributes = {**group.attrs, **group["queries_per_block"].attrs}
        return Popularity(group["queries_per_block"][:], float(attributes["gini"]),
                          int(attributes["chunks"]), float(attributes["mma_fill"]))
