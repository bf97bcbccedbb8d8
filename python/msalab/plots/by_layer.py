# SPDX-License-Identifier: MIT
"""All layers at once: which one can be sparse, and which one has an attention sink."""

from __future__ import annotations

import numpy as np

from ..table import Table
from . import style
from .results import Results
from .sink import largest


@style.styled
def mass_by_layer(results: Results, layers=None):
    """Mass kept layer by layer, one line per selector, with 95 % intervals."""
    layers = results.layers if layers is None else layers
    figure = style.new_figure(3.6)
    axes = figure.subplots()
    rows = []
    for selector in results.selectors:
        kept = [results.average(selector, layer, "mass_kept") for layer in layers]
        low, high = zip(*(results.interval(layer, "mass_kept", selector) for layer in layers))
        look = style.selector_style(selector)
        axes.plot(layers, kept, label=selector, **look)
        if len(layers) > 1:
            axes.fill_between(layers, low, high, color=look["color"], alpha=0.12, linewidth=0)
        else:  # a band of one layer has no width
            axes.vlines(layers, low, high, color=look["color"], alpha=0.4, linewidth=3)
        rows += [(layer, selector, *values) for layer, *values in zip(layers, kept, low, high)]
    style.layer_axis(axes, layers)
    axes.set_ylabel("mass kept")
    axes.set_ylim(top=1.01)
    if np.isnan([row[2] for row in rows]).all():
        style.say_instead(axes)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, Table.from_rows(("layer", "selector", "mass_kept", "mass_kept_low",
                                    "mass_kept_high"), rows)


@style.styled
def sink_by_layer(results: Results, selector: str, layers=None):
    """Mean probability on token 0 by layer and query head: above of dense attention, below of
    attention over the blocks that the selector kept."""
    layers = results.layers if layers is None else layers
    dense, sparse = (np.stack([results.metric(of, layer, name) for layer in layers], 1)
                     for of, name in (("dense", "sink_mass"), (selector, "sink_mass_sparse")))
    heads = len(dense)
    figure = style.new_figure(1.6 + 2 * min(0.16 * heads + 0.5, 3.2))
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, values, title in zip(panels, (dense, sparse), ("dense", f"sparse, {selector}")):
        axes.grid(False)
        image = axes.imshow(values, cmap=style.MAGNITUDE, vmin=0, vmax=largest(results), aspect="auto",
                            interpolation="nearest")
        for edge in range(results.sizes(layers[0]).group_size, heads,
                          results.sizes(layers[0]).group_size):
            axes.axhline(edge - 0.5, color=style.NO_DATA, linewidth=0.8)
        if np.isnan(values).all():
            style.say_instead(axes)
        axes.set_title(title, loc="left")
        axes.set_ylabel("query head")
        axes.locator_params(axis="y", integer=True)
    style.layer_axis(panels[-1], layers, where=range(len(layers)))
    bar = figure.colorbar(image, ax=panels, location="top", aspect=40, pad=0.02)
    bar.set_label("mean probability on token 0")
    group = results.sizes(layers[0]).group_size
    rows = [(layer, head, head // group, dense[head, place], sparse[head, place])
            for place, layer in enumerate(layers) for head in range(heads)]
    return figure, Table.from_rows(("layer", "head", "group", "dense", "sparse"), rows)
