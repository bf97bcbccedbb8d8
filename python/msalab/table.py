# SPDX-License-Identifier: MIT
"""The numbers behind a picture: named columns of equal length, written as tidy CSV."""

from __future__ import annotations

import csv
import html

import numpy as np


class Table:
    def __init__(self, **columns):
        self.columns = {name: np.asarray(values) for name, values in columns.items()}
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns differ in length: {lengths}")

    @classmethod
    def from_rows(cls, names, rows) -> Table:
        rows = list(rows)
        return cls(**{name: [row[i] for row in rows] for i, name in enumerate(names)})

    def __getitem__(self, name) -> np.ndarray:
        return self.columns[name]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def rows(self):
        """Tuples of plain Python values."""
        return zip(*(values.tolist() for values in self.columns.values()))

    def records(self) -> list[dict]:
        """The rows as dicts of plain Python values."""
        return [dict(zip(self.columns, row)) for row in self.rows()]

    def select(self, *names) -> Table:
        """These columns alone, in this order."""
        return Table(**{name: self[name] for name in names})

    def where(self, **equal) -> Table:
        """The rows whose named columns have the given values."""
        keep = np.ones(len(self), bool)
        for name, value in equal.items():
            keep &= self[name] == value
        return Table(**{name: values[keep] for name, values in self.columns.items()})

    def to_pandas(self):
        import pandas

        return pandas.DataFrame(self.columns)

    def of(self, **among) -> Table:
        """The rows whose named columns have one of the given values."""
        keep = np.ones(len(self), bool)
        for name, values in among.items():
            keep &= np.isin(self[name], values)
        return Table(**{name: values[keep] for name, values in self.columns.items()})

    def to_csv(self, path):
        """Floats are written so that reading them back gives the same bits."""
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(self.columns)
            writer.writerows(self.rows())

    def _repr_html_(self) -> str:
        def row(cells, tag):
            inside = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
            return f"<tr>{inside}</tr>"

        shown = [[f"{v:.4g}" if isinstance(v, float) else str(v) for v in values]
                 for values in list(self.rows())[:12]]
        note = f"<p>{len(shown)} of {len(self)} rows</p>" if len(self) > len(shown) else ""
        body = "".join(row(values, "td") for values in shown)
        return f"<table>{row(self.columns, 'th')}{body}</table>{note}"
