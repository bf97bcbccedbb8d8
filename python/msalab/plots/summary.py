# SPDX-License-Identifier: MIT
"""The summary rows: one per layer and selector, as in summary.json. Where a layer has a sliding window, a
column `window` has its tokens."""

from __future__ import annotations

from ..table import Table
from .results import Results

VALUES = ("mass_kept", "oracle_mass", "score_recall", "block_recall", "output_error", "sink_mass_dense",
          "sink_mass_sparse", "entropy_dense", "entropy_sparse", "rows_counted", "rows_trivial")


def summary_table(results: Results, layers=None) -> Table:
    layers = results.layers if layers is None else layers
    windowed = ("window",) * any(results.window(layer) for layer in layers)
    names = ("layer", *windowed, "selector", *VALUES)

    def value(selector, layer, name):
        if name.endswith("_dense"):
            return results.average("dense", layer, name.removesuffix("_dense"))
        return results.average(selector, layer, name)

    return Table.from_rows(names, ((layer, *(float(results.window(layer) or "nan") for _ in windowed), selector,
                                    *(value(selector, layer, name) for name in VALUES))
                                   for layer in layers for selector in results.selectors))
