# SPDX-License-Identifier: MIT
"""How much of the work the most popular blocks draw."""

from __future__ import annotations

import numpy as np

from ..table import Table
from . import style
from .results import Results


def lorenz(queries_per_block: np.ndarray) -> np.ndarray:
    """[Hkv, blocks] -> [blocks + 1]: share of all queries on the least popular blocks, in steps of
    one block, mean over the groups; 1 - 2 * the area below is the mean of the groups' Gini."""
    ordered = np.sort(queries_per_block, axis=1).astype(float)
    sums = np.cumsum(ordered, axis=1) / np.maximum(1, ordered.sum(1, keepdims=True))
    return np.concatenate([[0.0], sums.mean(0)])


@style.styled
def lorenz_curve(results: Results, layer: int):
    """Share of the queries against share of the blocks, least popular first, one line per
    selector; the dotted diagonal is perfect evenness."""
    figure = style.new_figure(4.0 + 0.11 * len(results.selectors))
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color=style.GUIDE, linestyle=":", linewidth=1.2)
    rows = []
    for selector in results.selectors:
        popularity = results.popularity(selector, layer)
        share = lorenz(popularity.queries_per_block)
        blocks = np.linspace(0, 1, len(share))
        look = {**style.selector_style(selector), "markevery": 0.2,
                "markersize": 4}
        axes.plot(blocks, share, label=f"{selector}, Gini {popularity.gini:.2f}", **look)
        rows += [(layer, selector, *point) for point in zip(blocks, share)]
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal",
             xlabel=f"share of the blocks, least popular first; layer {layer}",
             ylabel="share of the queries on them")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure, Table.from_rows(("layer", "selector", "blocks", "queries"), rows)
