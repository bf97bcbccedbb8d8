# SPDX-License-Identifier: MIT
"""The record of a timer: a report as the programs write it (data/FORMAT.md), after every measurement anew.
msalab.results reads it."""

import json
import sys
from pathlib import Path

from msalab import results
from msalab.evaluation.files import write_json
from msalab.report import Shape, content
from msalab.results import Column

# Columns that several timers have.
COMMIT = Column("text", "", "commit of what was timed")
ERROR = Column("text", "", "what failed", "it was timed")
SKIPPED = Column("text", "", "why it was not timed", "timed")
CASE = Column("text", "", "name of the shape")
PEAK_BYTES = Column("integer", "B", "most GPU memory that was taken", "it failed, or ran on a CPU")


def number(unit: str, definition: str) -> Column:
    return Column("real", unit, definition)


def texts(unit: str, definition: str, null: str = "") -> Column:
    """Numbers as a text, divided by spaces."""
    return Column("text", unit, f"{definition}, divided by spaces", null)


def spaced(numbers) -> str:
    return " ".join(map(json.dumps, numbers))


def numbers_of(text: str) -> list:
    """Those that spaced() wrote."""
    return [json.loads(word) for word in text.split()]


class Record:
    """path: None writes nothing. run: about all rows, what `same` names of it must be the same in a file that is there,
    whose rows are kept."""

    def __init__(self, path, program: str, title: str, shapes: list[Shape], run: dict, same=()):
        self.path, self._title, self._shapes = path and Path(path), title, shapes
        self.run, self.rows = {"program": program} | run, {shape.name: [] for shape in shapes}
        if path and self.path.exists():
            found = results.open(path, program)
            for name in same:
                if found.run[name] != run[name]:
                    sys.exit(f"{path}: {name} is {found.run[name]}, here it is {run[name]}; name another file")
            self.run = {"program": program} | found.run
            self.rows |= {name: of["rows"] for name, of in json.loads(self.path.read_text("utf-8"))["tables"].items()}

    def find(self, table: str, **key) -> dict | None:
        """The row with this key."""
        return next((row for row in self.rows[table] if key.items() <= row.items()), None)

    def put(self, table: str, row: dict) -> None:
        """Adds a row, in place of one of the same key, and writes the record."""
        (shape,) = (shape for shape in self._shapes if shape.name == table)
        key = {name: row[name] for name in [*shape.columns][:shape.keys]}
        self.rows[table] = [other for other in self.rows[table] if not (shape.keys and key.items() <= other.items())]
        self.rows[table].append(row)
        self.write()

    def write(self) -> None:
        if self.path:
            write_json(self.path, content(self.run, self._title, self._shapes, self.rows, {}))
