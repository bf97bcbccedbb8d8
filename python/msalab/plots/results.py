# SPDX-License-Identifier: MIT
"""Reads `msa-results` version 3 (data/FORMAT.md). Letters and shapes are those of that page.

Opening checks format and version; datasets are read when asked for, and selections only in the
pieces that the caller takes, so that nothing of size N x N is ever in memory.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import h5py
import numpy as np

from .. import hdf5, results
from ..results import ResultsError, blamed

FORMAT, VERSION = "msa-results", "3"
OF_GROUPS = ("block_recall", "score_recall", "mass_kept", "oracle_mass", "sink_mass_first_block")


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


class Selected:
    """Selected blocks, int32 [Nq, Hkv, k], on disk: take rows of it."""

    def __init__(self, path, dataset: h5py.Dataset, blocks: int):
        self._path, self._dataset, self._blocks = path, dataset, blocks
        self.shape = dataset.shape

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows) -> np.ndarray:
        with blamed(self._path, f"{self._dataset.name} cannot be read"):
            ids = self._dataset[rows]
        if ids.size and not -1 <= ids.min() <= ids.max() < self._blocks:
            raise ResultsError(f"{self._path}: {self._dataset.name} holds {ids.min()} to "
                               f"{ids.max()}, must be -1 or from 0 to {self._blocks - 1}")
        return ids


def _text(value) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


class ResultsFile:
    """A file of the format, open for reading; use it in a `with` statement."""

    group = ""  # of the layers
    program = ""  # whose results these are
    elsewhere = {}  # other programs whose results have this format: where theirs belong
    otherwise = ""  # the same of all that `elsewhere` does not name
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
            with blamed(self.path, "is damaged"):
                self._check_format()
        except ResultsError:
            self.close()
            raise

    def _check_format(self):
        found = _text(self._file.attrs.get("format", "(none)"))
        if found != FORMAT:
            raise ResultsError(f'{self.path}: attribute format is "{found}", must be "{FORMAT}"')
        version = _text(self._file.attrs.get("format_version", "(none)"))
        if version != VERSION:
            raise ResultsError(f"{self.path}: format_version is {version}, must be {VERSION}")
        program = _text(self._at("run").attrs.get("program", "")) if "run" in self._file else ""
        if program.startswith(("msa-", "msalab ")) and program != self.program:
            raise ResultsError(f"{self.path}: was written by {program}; "
                               f"{self.elsewhere.get(program, self.otherwise)}")
        if not self.layers:
            raise ResultsError(f"{self.path}: /{self.group} is empty; at least one layer is needed")

    def close(self):
        self._file.close()

    @cached_property
    def _answer(self) -> results.Report | None:
        """The tables of the run; None of an older file without a summary.json beside it."""
        known = "tables" in self._file or self.path.with_name(results.SUMMARY).is_file()
        return results.open(self.path, self.program) if known else None

    def _interval(self, table: str, name: str, **row) -> tuple[float, float]:
        """The 95 % interval of an average in a table of the answer; NaN where none is known."""
        found = self._answer[table].where(**row) if self._answer else ()
        if not len(found):
            return math.nan, math.nan
        return tuple(found[f"{name}{end}"].item() for end in results.ENDS[1:])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _at(self, name: str, kind=h5py.Group):
        with blamed(self.path, f"/{name} cannot be read"):
            if name not in self._file:
                raise ResultsError(f"{self.path}: /{name} is missing")
            found = hdf5.checked(self._file[name], self._file, f"{self.path}: /{name}", ResultsError)
        if not isinstance(found, kind):
            raise ResultsError(f"{self.path}: /{name} must be a {kind.__name__.lower()}")
        return found

    def _names(self, name: str) -> list[str]:
        with blamed(self.path, f"/{name} cannot be read"):
            return list(self._at(name)) if name in self._file else []

    def _dataset(self, name: str, kinds: str, *shape) -> h5py.Dataset:
        """`kinds`: i for integers, f for floating values, or both; None in `shape`: any size."""
        dataset = self._at(name, h5py.Dataset)
        with blamed(self.path, f"/{name} cannot be read"):
            found, kind = dataset.shape, dataset.dtype.kind
        if kind.replace("u", "i") not in kinds:
            raise ResultsError(f"{self.path}: /{name} is {dataset.dtype}, must hold "
                               f"{'integers' if kinds == 'i' else 'numbers'}")
        if found is None or len(found) != len(shape) or any(
                want not in (None, have) for want, have in zip(shape, found)):
            raise ResultsError(f"{self.path}: /{name} has shape {found}, must have "
                               f"{tuple('any' if n is None else n for n in shape)}")
        return dataset

    def _values(self, name: str, kinds: str, *shape) -> np.ndarray:
        dataset = self._dataset(name, kinds, *shape)
        with blamed(self.path, f"/{name} cannot be read"):
            return dataset[:]

    def _attribute(self, name: str, attribute: str, kind=float):
        """Of the object `name`: a text, or one number."""
        with blamed(self.path, f"/{name} has an unreadable attribute {attribute}"):
            attributes = self._at(name, (h5py.Group, h5py.Dataset)).attrs
            if attribute not in attributes:
                raise ResultsError(f"{self.path}: /{name} lacks attribute {attribute}")
            value = hdf5.attribute(attributes[attribute])
        if kind is str:
            return _text(value)
        if np.ndim(value) or np.asarray(value).dtype.kind not in "iuf" or (
                kind is int and value != np.floor(value)):
            shown = repr(value) if isinstance(value, str) else value
            raise ResultsError(f"{self.path}: /{name} attribute {attribute} is {shown}, must be "
                               f"{'an integer' if kind is int else 'a number'}")
        return kind(value)

    # What was run

    @cached_property
    def run(self) -> dict[str, str]:
        """The attributes of /run as text, and what run.json beside the file says of the run."""
        with blamed(self.path, "/run has unreadable attributes"):
            stored = {name: _text(hdf5.attribute(value)) for name, value in self._at("run").attrs.items()}
        return {**self._beside(stored.get("program")), **stored}

    def _beside(self, program) -> dict[str, str]:
        try:
            made = json.loads(self.path.with_name("run.json").read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        if not isinstance(made, dict) or made.get("program") != program:
            return {}
        texts = {name: made[name] for name in ("host", "started", "finished")
                 if isinstance(made.get(name), str)}
        return {"argv": json.dumps(made.get("argv", [])), **texts}

    def run_json(self, name: str) -> dict | list:
        """A JSON attribute of /run: argv, captures, options, definitions or inputs; empty where absent."""
        kind = list if name in ("argv", "captures") else dict
        try:
            value = json.loads(self.run.get(name, "[]" if kind is list else "{}"))
        except (ValueError, RecursionError) as error:
            raise ResultsError(f"{self.path}: /run attribute {name} is no JSON: {error}") from error
        inner = dict if name == "captures" else str
        if not isinstance(value, kind) or kind is list and not all(
                isinstance(one, inner) for one in value):
            of = " of objects" if inner is dict else " of texts"
            raise ResultsError(f"{self.path}: /run attribute {name} must be a JSON "
                               f"{'list' + of if kind is list else 'object'}")
        return value

    @cached_property
    def layers(self) -> list[int]:
        names = self._names(self.group)
        for name in names:
            if not name.isdecimal() or name != str(int(name)):
                raise ResultsError(f"{self.path}: /{self.group}/{name} is no layer number")
        return sorted(map(int, names))

    def require_layers(self, layers):
        """ResultsError if there is none of one of these numbers."""
        unknown = [layer for layer in layers if layer not in self.layers]
        if unknown:
            raise ResultsError(f"{self.path}: no layer {unknown[0]}; it has {self.layers}")


class Results(ResultsFile):
    """One results file of msa-analyze."""

    group = "layers"
    program = "msa-analyze"
    elsewhere = {"msa-compare": "--compare draws its summary.json",
                 "msalab evaluate": "--evaluate draws its summary.json, beside results of msa-analyze",
                 "msa-fit-indexer": "--fit draws it, beside results of msa-analyze",
                 "msa-pretrain": "its curves are in curves.csv; of its activations.h5, msa-analyze "
                                 "makes results to draw"}
    otherwise = "msalab plot draws its summary.json"

    # What there is

    @cached_property
    def selectors(self) -> list[str]:
        """Selectors with metrics, the oracle first, then by name."""
        names = [name for name in self._names("metrics") if name != "dense"]
        return sorted(names, key=lambda name: (name != "oracle", name))

    def curve_selectors(self, layer: int) -> list[str]:
        names = [name for name in self._names("curves")
                 if str(layer) in self._names(f"curves/{name}")]
        return sorted(names, key=lambda name: (name != "oracle", name))

    def sizes(self, layer: int) -> LayerSizes:
        if layer not in self._sizes:
            self._sizes[layer] = self._read_sizes(layer)
        return self._sizes[layer]

    @cached_property
    def _sizes(self) -> dict[int, LayerSizes]:
        return {}

    def _read_sizes(self, layer: int) -> LayerSizes:
        sizes = {name: self._attribute(f"layers/{layer}", name,
                                       float if name == "softmax_scale" else int)
                 for name in LayerSizes.__dataclass_fields__}
        for name, value in sizes.items():
            if value < (0 if name == "index_dim" else 1) and name != "softmax_scale":
                raise ResultsError(f"{self.path}: /layers/{layer} attribute {name} is {value}, "
                                   "must be positive")
        sizes = LayerSizes(**sizes)
        if sizes.query_heads % sizes.kv_heads or sizes.blocks > -(-sizes.tokens //
                                                                  sizes.block_size):
            raise ResultsError(f"{self.path}: /layers/{layer} has sizes that contradict each "
                               f"other: {sizes}")
        return sizes

    @cached_property
    def sequences(self) -> int:
        """Of the captures together."""
        with blamed(self.path, "/run attribute captures is damaged"):
            of_captures = sum(int(of["sequences"]) for of in self.run_json("captures"))
        return of_captures or 1 + int(self.queries(self.layers[0]).sequence.max())

    def window(self, layer: int) -> int | None:
        """Tokens that the layer attends to, where it has a sliding window."""
        layer = f"layers/{layer}"
        return self._attribute(layer, "window", int) if "window" in self._at(layer).attrs else None

    @cached_property
    def full_layers(self) -> list[int]:
        """Without a sliding window: those that can be sparse; where all have one, all."""
        return [layer for layer in self.layers if self.window(layer) is None] or self.layers

    # What was found

    def queries(self, layer: int) -> Queries:
        token, position, sequence = (self._values(f"queries/{layer}/{name}", "i", None)
                                     for name in ("token", "position", "sequence"))
        tokens, last = self.sizes(layer).tokens, np.iinfo(np.int64).max
        for name, values, end in (("token", token, tokens), ("position", position, tokens),
                                  ("sequence", sequence, last)):
            if len(values) != len(token) or not len(values):
                raise ResultsError(f"{self.path}: /queries/{layer}/{name} has {len(values)} "
                                   f"values, token has {len(token)}; there is one of each per "
                                   "query, and at least one query")
            if values.min() < 0 or values.max() >= end:
                raise ResultsError(f"{self.path}: /queries/{layer}/{name} holds {values.min()} to "
                                   f"{values.max()}, must be from 0 to {end - 1}")
        if (np.diff(sequence) < 0).any():
            raise ResultsError(f"{self.path}: /queries/{layer}/sequence must not descend")
        return Queries(token, position, sequence)

    def rows_with_choice(self, layer: int) -> np.ndarray:
        """Row numbers of the queries that see more than k blocks; the averages are over these."""
        visible = self.queries(layer).position // self.sizes(layer).block_size + 1
        return np.flatnonzero(visible > self.top_k(self.selectors[0], layer))

    def ids(self, selector: str, layer: int) -> Selected:
        """Rows are queries."""
        name = f"select/{selector}/{layer}/ids"
        sizes, queries = self.sizes(layer), self._dataset(f"queries/{layer}/token", "i", None)
        dataset = self._dataset(name, "i", len(queries), sizes.kv_heads, None)
        return Selected(self.path, dataset, sizes.blocks)

    def mass(self, layer: int, rows: slice) -> np.ndarray | None:
        """float32 [rows, Hkv, B], probabilities of blocks; None where the run did not --dump mass."""
        name = f"mass/{layer}"
        if str(layer) not in self._names("mass"):
            return None
        sizes, queries = self.sizes(layer), len(self._dataset(f"queries/{layer}/token", "i", None))
        dataset = self._dataset(name, "f", queries, sizes.kv_heads, sizes.blocks)
        with blamed(self.path, f"/{name} cannot be read"):
            return dataset[rows]

    def rule(self, selector: str) -> str:
        """What the selector does, as the run described it; empty where it did not."""
        name = f"select/{selector}/{self.layers[0]}/ids"
        with blamed(self.path, f"/{name} has unreadable attributes"):
            return _text(self._at(name, h5py.Dataset).attrs.get("description", ""))

    def top_k(self, selector: str, layer: int) -> int:
        return int(self.ids(selector, layer).shape[2])

    def metric(self, selector: str, layer: int, name: str) -> np.ndarray:
        """float64 [Hkv] or [Hq]; selector may be `dense`."""
        sizes = self.sizes(layer)
        return self._values(f"metrics/{selector}/{layer}/{name}", "f",
                            sizes.kv_heads if name in OF_GROUPS else sizes.query_heads)

    def average(self, selector: str, layer: int, name: str) -> float:
        """A macro average or a count, as stored beside the metrics."""
        value = self._attribute(f"metrics/{selector}/{layer}", name)
        return int(value) if name.startswith("rows_") else value

    def interval(self, layer: int, name: str, selector: str) -> tuple[float, float]:
        """The 95 % interval of an average, from the summary.json beside the file; NaN where none is known."""
        return self._interval("selectors", name, layer=layer, selector=selector)

    @cached_property
    def has_recall_by_k(self) -> bool:
        """Results of an earlier version have the mass by k alone."""
        return any(f"curves/{name}/{layer}/block_recall" in self._file for name in self.selectors for layer in self.layers)

    def curve(self, selector: str, layer: int, name: str = "mass_kept") -> tuple[np.ndarray, np.ndarray]:
        """(k int64 [m], mass_kept, block_recall or score_recall float64 [m])"""
        k = self._values(f"curves/{selector}/{layer}/k", "i", None)
        if not len(k) or k.min() < 1:
            raise ResultsError(f"{self.path}: /curves/{selector}/{layer}/k must hold positive "
                               "integers")
        return k, self._values(f"curves/{selector}/{layer}/{name}", "f", len(k))

    def popularity(self, selector: str, layer: int) -> Popularity:
        group = f"popularity/{selector}/{layer}"
        counts = self._values(f"{group}/queries_per_block", "i", self.sizes(layer).kv_heads, None)
        if not counts.size or counts.min() < 0:
            raise ResultsError(f"{self.path}: /{group}/queries_per_block must hold counts")

        def number(name, kind):
            holder = group if name in self._at(group).attrs else f"{group}/queries_per_block"
            return self._attribute(holder, name, kind)

        return Popularity(counts, number("gini", float), number("chunks", int),
                          number("mma_fill", float))
