# SPDX-License-Identifier: MIT
"""Writes a report (data/FORMAT.md) of a program in Python, as experiments/report/ does of the others: from one description
of tables JSON, CSV and the group /tables of results.h5. msalab.results reads it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import h5py
import numpy as np

from .results import ENDS, FORMAT, VERSION, Column

TEXT = h5py.string_dtype()


@dataclass(frozen=True)
class Shape:
    """A table without rows. about: what a row is; the first `keys` columns identify it, 0: there is one row."""

    name: str
    about: str
    keys: int
    columns: dict[str, Column]


def content(record: dict, title: str, shapes: list[Shape], rows: dict[str, list[dict]], notes: dict[str, str]) -> dict:
    """That of summary.json. record: program, and what `run` says; rows: by table, an estimate as KEY, KEY_low and
    KEY_high. A value that is not there is None, in a column that says why or of numbers that may be undefined."""
    columns: dict[str, Column] = {}
    for shape in shapes:
        for key, column in shape.columns.items():
            assert columns.setdefault(key, column)[:3] == column[:3], f"column {key} of table {shape.name} means two things"
    assert "intervals" in notes or all(column.type != "estimate" for column in columns.values())
    return {"format": FORMAT, "format_version": VERSION, "program": record["program"],
            "run": {name: value for name, value in record.items() if name != "program"},
            "title": title, "verdict": {"reached": None, "text": ""}, "notes": notes,
            "columns": {key: _column(column) for key, column in columns.items()},
            "tables": {shape.name: _table(shape, rows[shape.name]) for shape in shapes}}


def _entries(key: str, kind: str) -> list[str]:
    return [key + end for end in (ENDS if kind == "estimate" else ENDS[:1])]


def _column(column: Column) -> dict:
    found = column._asdict()
    return found if column.null else {name: value for name, value in found.items() if name != "null"}


def _table(shape: Shape, rows: list[dict]) -> dict:
    names = [(entry, column) for key, column in shape.columns.items() for entry in _entries(key, column.type)]
    made = [{entry: _cell(shape, entry, column, row.get(entry)) for entry, column in names} for row in rows]
    key = [*shape.columns][:shape.keys]
    assert len({tuple(row[name] for name in key) for row in made}) == len(made), f"table {shape.name}: rows of one key"
    return {"about": shape.about, "key": key, "columns": [*shape.columns], "rows": made}


def _cell(shape: Shape, entry: str, column: Column, value):
    if column.type in ("real", "estimate"):
        return float(value) if value is not None and math.isfinite(value) else None
    assert value is not None or column.null, f"table {shape.name}: {entry} is missing"
    return value


def csv(content: dict, name: str) -> str:
    """A header and a line for each row of a table of the content."""
    table = content["tables"][name]
    header = [entry for key in table["columns"] for entry in _entries(key, content["columns"][key]["type"])]

    def cell(value):
        text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
        return '"' + text.replace('"', '""') + '"' if any(letter in text for letter in ',"\r\n') else text

    return "".join(",".join(map(cell, line)) + "\n" for line in (header, *(
        row.values() for row in table["rows"])))


def write_tables(file: h5py.File, content: dict) -> None:
    """The group /tables of an open file; the record is in its /run."""
    of = file.create_group("tables")
    for name, text in (("format", content["format"]), ("title", content["title"]), ("verdict", content["verdict"]["text"]),
                       ("notes", json.dumps(content["notes"])), ("tables", " ".join(content["tables"]))):
        of.attrs[name] = text
    of.attrs["format_version"] = content["format_version"]
    if content["verdict"]["reached"] is not None:
        of.attrs["reached"] = int(content["verdict"]["reached"])
    for name, table in content["tables"].items():
        group = of.create_group(name)
        group.attrs.update({"about": table["about"], "columns": " ".join(table["columns"]), "key": " ".join(table["key"])})
        for key in table["columns"]:
            column = content["columns"][key]
            group[key] = _values(key, column, table["rows"])
            group[key].attrs.update({"axes": "row,end" if column["type"] == "estimate" else "row", "unit": column["unit"],
                                     "description": column["definition"], "type": column["type"]})
            if "null" in column:
                group[key].attrs["null"] = column["null"]


def _values(key: str, column: dict, rows: list[dict]) -> np.ndarray:
    kind, optional = column["type"], "null" in column
    if kind == "estimate":
        return np.array([[row[key + end] for end in ENDS] for row in rows], float).reshape(-1, len(ENDS))
    cells = [row[key] for row in rows]
    if kind == "text":
        return np.array([cell or "" for cell in cells], TEXT)
    if kind == "truth":
        return np.array([-1 if cell is None else cell for cell in cells], np.int32)
    return np.array(cells, float if kind == "real" or optional else np.int64)
