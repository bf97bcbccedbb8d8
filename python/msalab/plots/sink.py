# SPDX-License-Identifier: MIT
"""How much attention the first token draws (fig:attention-sink)."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from ..table import Table
from . import style
from .results import Results


LEAST = 0.05  # that a scale reaches: below it there is no sink to be seen


@lru_cache(maxsize=2)
def largest(results: Results) -> float:
    """The largest bar of any layer and selector, so that all pictures have one scale."""
    every = [results.metric("dense", layer, "sink_mass") for layer in results.layers]
    every += [results.metric(selector, layer, "sink_mass_sparse")
              for layer in results.layers for selector in results.selectors]
    values = np.concatenate(every)
    return float(values.max(initial=LEAST, where=~np.isnan(values)))


@style.styled
def sink_bars(results: Results, selector: str, layers=None):
    """Mean probability on token 0 per query head, one panel per layer: dense attention beside
    attention over the blocks that the selector kept."""
    layers = results.layers if layers is None else layers
    figure = style.new_figure(0.8 + 2.2 * len(layers))
    axes = figure.subplots(len(layers), 1, squeeze=False, sharey=True)[:, 0]
    colour = style.selector_style(selector)["color"]
    rows = []
    for panel, layer in zip(axes, layers):
        dense = results.metric("dense", layer, "sink_mass")
        sparse = results.metric(selector, layer, "sink_mass_sparse")
        heads = np.arange(len(dense))
        panel.bar(heads - 0.2, dense, 0.4, color=style.DENSE, label="dense")
        panel.bar(heads + 0.2, sparse, 0.4, color=colour, label=f"sparse, {selector}")
        if np.isnan([dense, sparse]).all():
            style.say_instead(panel)
        group_size = results.sizes(layer).group_size
        for edge in heads[group_size::group_size]:
            panel.axvline(edge - 0.5, color=style.GUIDE, linewidth=0.8, linestyle=":")
        panel.set(title=f"layer {layer}", xlim=(-0.6, len(heads) - 0.4),
                  ylim=(0, 1.03 * largest(results)))
        panel.grid(False, axis="x")
        panel.locator_params(axis="x", integer=True)
        rows += [(layer, h, h // group_size, dense[h], sparse[h]) for h in heads]
    axes[-1].set_xlabel("query head (dotted lines part the GQA groups)")
    figure.supylabel("mean probability on token 0")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    return figure, Table.from_rows(("layer", "head", "group", "dense", "sparse"), rows)
