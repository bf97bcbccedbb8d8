# SPDX-License-Identifier: MIT
"""The summary rows: one per layer and selector, as in summary.json."""

from __future__ import annotations

from ..table import Table
from .results import Results

AVERAGES = ("mass_kept", "oracle_mass", "score_recall", "block_recall", "output_error")
COUNTS = ("rows_counted", "rows_trivial")


def summary_table(results: Results, layers=None) -> Table:
    layers = results.layers if layers is None else layers
    names = ("layer", "selector", *AVERAGES, "sink_mass_dense", "sink_mass_sparse",
             "entropy_dense", "entropy_sparse", *COUNTS)

    def value(selector, layer, name):
        if name.endswith("_dense"):
            return results.average("dense", layer, name.removesuffix("_dense"))
        return results.average(selector, layer, name)

    return Table.from_rows(names, ((layer, selector, *(value(selector, layer, name)
                                                       for name in names[2:]))
                                   for layer in layers for selector in results.selectors))
