# SPDX-License-Identifier: MIT
"""What the programs answer: the tables of `msa-report` (data/FORMAT.md), of every program alike.

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
from typing import NamedTuple

import numpy as np

from . import table
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

    def row(self, **key) -> dict:
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
        self.run: dict = content["run"]
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


def open(path, program: str | None = None) -> Report:
    """The answer in a summary.json, in its folder, or beside a results.h5. ResultsError names what
    is wrong, also where the answer is not one of `program`."""
    path = Path(path)
    if path.is_dir():
        path = path / SUMMARY
    elif path.suffix == ".h5":
        path = path.with_name(SUMMARY)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ResultsError(f"{path}: not a readable JSON file ({error})") from error
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
