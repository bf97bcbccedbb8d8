# SPDX-License-Identifier: MIT
"""What the programs answer: the tables of `msa-report` (data/FORMAT.md), of every program alike.

For example:

    answer = msalab.results.open("results/reuse")     # a folder, its summary.json or results.h5
    answer.verdict.reached, answer.verdict.text
    pairs = answer["pairs"]                           # a table
    pairs["mass_lost"], pairs["mass_lost_low"]        # its columns, arrays of numpy
    pairs.described["mass_lost"].definition
    pairs.to_pandas()                                 # where pandas is installed
    answer.run["options"]["top_k"]
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from . import hdf5, table
from .ending import Refusal

FORMAT, VERSION = "msa-report", 1
SUMMARY = "summary.json"


class ResultsError(Refusal):
    """The file is not what was asked for; the text names file, object and rule."""


@contextmanager
def blamed(path, fault: str):
    """Libraries raise errors of many types on damaged files: a ResultsError that names the file."""
    try:
        yield
    except ResultsError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the operating system, as a full disk
        raise ResultsError(f"{path}: {fault}: {type(error).__name__}: {error}") from error


class Column(NamedTuple):
    """type is truth, integer, real, text or estimate; null says why a value may be missing."""

    type: str
    unit: str
    definition: str
    null: str = ""


class Verdict(NamedTuple):
    """Whether the run's target is reached; None where it has none."""

    reached: bool | None
    text: str


# What a value of each type is in JSON, and in an array.
_KINDS = {"truth": (bool, bool), "integer": (int, np.int64), "real": ((int, float), np.float64),
          "text": (str, str)}
ENDS = ("", "_low", "_high")


class Table(table.Table):
    """Rows under named columns of equal length. An estimate has three: KEY, KEY_low and KEY_high. A
    missing number is NaN (a column of integers with one is float64), a missing text is empty."""

    def __init__(self, name: str, about: str, key: tuple[str, ...], described: dict[str, Column],
                 columns: dict):
        super().__init__(**columns)
        self.name, self.about, self.key, self.described = name, about, key, described

    def row(self, **key: Any) -> dict[str, Any]:
        """The values of the one row with this key, by column."""
        found = self.where(**key).records()
        if len(found) != 1:
            raise ResultsError(f"table {self.name}: {len(found)} rows have {key}, must be one")
        return found[0]


class Report:
    """The answer of one run."""

    def __init__(self, path: Path, content: dict):
        self.path = path
        self.program: str = content["program"]
        self.title: str = content["title"]
        self.verdict = Verdict(content["verdict"]["reached"], content["verdict"]["text"])
        self.notes: dict[str, str] = content["notes"]
        self.run: dict[str, Any] = content["run"]
        self.columns = {key: Column(**column) for key, column in content["columns"].items()}
        self.tables = {name: self._table(name, of) for name, of in content["tables"].items()}

    def __getitem__(self, name: str) -> Table:
        if name not in self.tables:
            raise ResultsError(f"{self.path}: has no table {name}; there are: "
                               f"{', '.join(self.tables)}")
        return self.tables[name]

    @property
    def definitions(self) -> dict[str, str]:
        return {key: column.definition for key, column in self.columns.items()}

    def _table(self, name: str, of: dict) -> Table:
        described = {key: self.columns[key] for key in of["columns"]}
        columns = {}
        for key, column in described.items():
            of_estimate = column.type == "estimate"
            for end in ENDS if of_estimate else ENDS[:1]:
                columns[key + end] = self._array(name, key + end, "real" if of_estimate else column.type,
                                                 of["rows"])
        return Table(name, of["about"], tuple(of["key"]), described, columns)

    def _array(self, name: str, key: str, kind: str, rows: list[dict]) -> np.ndarray:
        in_json, in_array = _KINDS[kind]
        values = [row[key] for row in rows]
        for n, value in enumerate(values):
            if value is not None and (not isinstance(value, in_json)
                                      or (isinstance(value, bool) and kind != "truth")):
                raise ResultsError(f"{self.path}: table {name}, row {n}: {key} is {value!r}, must be "
                                   f"of type {kind}")
        if None in values:
            in_array, none = {"real": (np.float64, np.nan), "integer": (np.float64, np.nan),
                              "text": (str, ""), "truth": (object, None)}[kind]
            values = [none if value is None else value for value in values]
        return np.array(values, in_array)


class _Hdf5:
    """The content of a summary.json, from a results.h5 with the group /tables."""

    def __init__(self, path: Path, file: h5py.File):
        self._path, self._file = path, file

    def content(self) -> dict:
        of, run = self._attributes("tables"), self._attributes("run")
        columns: dict[str, dict] = {}
        tables = {name: self._table(f"tables/{name}", columns) for name in of["tables"].split()}
        parsed = {name: json.loads(run[name]) for name in ("options", "inputs", "captures", "model") if run.get(name)}
        known = {name: run[name] for name in _OF_RUN if name in run} | parsed
        if not known.get("inputs"):
            known.pop("inputs", None)
        return {"format": of["format"], "format_version": of["format_version"], "program": run["program"],
                "run": known, "title": of["title"],
                "verdict": {"reached": bool(of["reached"]) if "reached" in of else None, "text": of["verdict"]},
                "notes": json.loads(of["notes"]), "columns": columns, "tables": tables}

    def _at(self, place: str):
        return hdf5.checked(self._file[place], self._file, f"{self._path}: /{place}", ResultsError)

    def _attributes(self, place: str) -> dict:
        found = {name: hdf5.attribute(value) for name, value in self._at(place).attrs.items()}
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in found.items()}

    def _table(self, place: str, columns: dict) -> dict:
        of = self._attributes(place)
        names, entries = of["columns"].split(), {}
        for name in names:
            about = self._attributes(f"{place}/{name}")
            columns.setdefault(name, {"type": about["type"], "unit": about["unit"],
                                      "definition": about["description"]}
                               | ({"null": about["null"]} if "null" in about else {}))
            values = self._values(f"{place}/{name}", columns[name])
            if about["type"] == "estimate":
                entries |= {name + end: [row[n] for row in values] for n, end in enumerate(ENDS)}
            else:
                entries[name] = values
        rows = [dict(zip(entries, values)) for values in zip(*entries.values(), strict=True)]
        return {"about": of["about"], "key": of["key"].split(), "columns": names, "rows": rows}

    def _values(self, place: str, column: dict) -> list:
        kind, values = column["type"], self._at(place)[()].tolist()
        if kind == "estimate":
            return [[_number(value) for value in row] for row in values]
        if kind == "truth":
            return [None if value < 0 else bool(value) for value in values]
        if kind == "integer":
            return [None if value != value else int(value) for value in values]
        if kind == "text":
            return [value.decode() or (None if "null" in column else "") for value in values]
        return [_number(value) for value in values]


_OF_RUN = ("commit", "compiler", "seed", "options", "element", "index_element", "computed_in", "inputs", "captures", "model")


def _number(value: float) -> float | None:
    return None if value != value else value


def _content_of_hdf5(path: Path) -> dict | None:
    """None of a file without tables, as older ones are."""
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise ResultsError(f"{path}: not a readable HDF5 file ({error})") from error
    with file, blamed(path, "is damaged"):
        return _Hdf5(path, file).content() if "tables" in file else None


def _content(path: Path) -> tuple[Path, dict]:
    if path.suffix == ".h5":
        content = _content_of_hdf5(path) if path.exists() else None
        if content is not None:
            return path, content
        path = path.with_name(SUMMARY)
    elif path.is_dir():
        path = path / SUMMARY
    try:
        return path, json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: not a readable JSON file ({error})") from error


def open(path: str | Path, program: str | None = None) -> Report:
    """The answer in a summary.json, in its folder, or in a results.h5; of an older results.h5, which has no tables,
    the one beside it. ResultsError names what is wrong, also where the answer is not one of `program`."""
    return of(*_content(Path(path)), program)


def of(path, content, program: str | None = None) -> Report:
    """The same of what a summary.json holds, which errors call `path`."""
    found = content.get("format") if isinstance(content, dict) else None
    if found != FORMAT:
        raise ResultsError(f'{path}: format is "{found}", must be "{FORMAT}"')
    if content.get("format_version") != VERSION:
        raise ResultsError(f"{path}: format_version is {content.get('format_version')}, must be "
                           f"{VERSION}")
    if program and content.get("program") != program:
        raise ResultsError(f"{path}: program is {content.get('program')}, must be {program}")
    with blamed(path, "is damaged"):
        return Report(path, content)
