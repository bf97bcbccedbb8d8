# SPDX-License-Identifier: MIT
"""How evenly the selections load the key blocks."""

from __future__ import annotations

import numpy as np

from ..table import Table
from . import style
from .results import Results


def power_of_two_bins(counts: np.ndarray, bins: int) -> np.ndarray:
    """Histogram with the bins 0, 1, 2-3, 4-7, 8-15, ..."""
    exponent = np.frexp(counts.ravel().astype(float))[1]  # exact: 0 for 0, else bit length
    return np.bincount(exponent, minlength=bins)


@style.styled
def queries_per_block(results: Results, layer: int, selectors=None):
    """Histogram of queries per (block, group) in powers of two, one panel per selector, with the
    oracle's outline in each."""
    selectors = results.selectors if selectors is None else selectors
    shown = {selector: results.popularity(selector, layer) for selector in selectors}
    largest = max(int(popularity.queries_per_block.max()) for popularity in shown.values())
    bins = largest.bit_length() + 1
    blocks = {selector: power_of_two_bins(popularity.queries_per_block, bins)
              for selector, popularity in shown.items()}
    lower = np.array([0] + [1 << i for i in range(bins - 1)])
    first = int(np.nonzero(sum(blocks.values()))[0][0])

    figure = style.new_figure(0.8 + 1.15 * len(selectors))
    axes = figure.subplots(len(selectors), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    rows = []
    for panel, selector in zip(axes, selectors):
        look = style.selector_style(selector)
        panel.bar(np.arange(bins), blocks[selector], 0.9, color=look["color"], alpha=0.85)
        if "oracle" in blocks and selector != "oracle":
            panel.stairs(blocks["oracle"], np.arange(bins + 1) - 0.5, color=style.REFERENCE,
                         linestyle="--", linewidth=1.2, baseline=None)
        panel.set_title(f"{selector}, Gini {shown[selector].gini:.2f}", loc="left")
        panel.set_yscale("log")
        panel.grid(False, axis="x")
        rows += [(layer, selector, low, max(0, 2 * low - 1), count, shown[selector].gini)
                 for low, count in zip(lower, blocks[selector])]
    axes[-1].set(ylim=(0.7, None), xlim=(first - 0.6, bins - 0.4))
    axes[-1].set_xticks(np.arange(first, bins), [f"{low}" for low in lower[first:]])
    axes[-1].set_xlabel(f"layer {layer}: queries that select the block (bin starts at)")
    figure.supylabel("blocks, all groups")
    names = ("layer", "selector", "queries_from", "queries_to", "blocks", "gini")
    return figure, Table.from_rows(names, rows)
