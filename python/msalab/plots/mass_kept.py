# SPDX-License-Identifier: MIT
"""What a larger budget would keep, and find."""

from __future__ import annotations

import math

from matplotlib.ticker import FuncFormatter, LogLocator

from ..table import Table
from . import style
from .results import Results

UNKNOWN = (math.nan, math.nan)


def _axis_of_k(panel, chosen: int):
    panel.axvline(chosen, color=style.GUIDE, linestyle=":", linewidth=1.2)
    panel.annotate(f"k = {chosen}", (chosen, 0.03), (4, 0), textcoords="offset points",
                   xycoords=("data", "axes fraction"), color=style.GUIDE)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_locator(LogLocator(base=2, numticks=16))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def _axis_of_shares(axes, values):
    """The axis that these panels share reaches from where the lowest line needs it to 1."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        style.say_instead(axes[0])
    bottom = math.floor(10 * min(known + [0.9])) / 10
    axes[-1].set_ylim(bottom, 1 + 0.02 * (1 - bottom))
    axes[-1].set_xlabel("selected blocks per query and group, k")


@style.styled
def mass_kept_curve(results: Results, layers=None):
    """Mass kept against the number of selected blocks, one panel per layer, one line per
    selector; the oracle is the reference and the dotted line the k of the run, with 95 %
    intervals."""
    layers = results.layers if layers is None else layers
    figure = style.new_figure(0.9 + 2.5 * len(layers))
    axes = figure.subplots(len(layers), 1, squeeze=False, sharex=True, sharey=True)[:, 0]
    rows = []
    for panel, layer in zip(axes, layers):
        selectors = results.curve_selectors(layer)
        chosen = results.top_k(results.selectors[0], layer)
        for selector in selectors:
            k, mass = results.curve(selector, layer)
            look = style.selector_style(selector)
            panel.plot(k, mass, label=selector, **look)
            sure = results.interval(layer, "mass_kept", selector)
            panel.vlines(chosen, *sure, color=look["color"], linewidth=2.5, alpha=0.5)
            rows += [(layer, selector, *point, *(sure if point[0] == chosen else UNKNOWN))
                     for point in zip(k, mass)]
        _axis_of_k(panel, chosen)
        panel.set_title(f"layer {layer}")
    _axis_of_shares(axes, [mass for *_, mass, _, _ in rows])
    figure.supylabel("mass kept")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, Table.from_rows(("layer", "selector", "k", "mass_kept", "mass_kept_low",
                                    "mass_kept_high"), rows)


RECALLS = {"block_recall": "block recall", "score_recall": "score recall"}


@style.styled
def recall_by_k(results: Results, layer: int):
    """Of the blocks of an oracle with as many, and of their mass, the share that each selector finds, against their
    number; the dotted line is the k of the run, with 95 % intervals."""
    figure = style.new_figure(5.4)
    axes = figure.subplots(2, 1, sharex=True, sharey=True)
    selectors = [name for name in results.curve_selectors(layer) if name != "oracle"]
    chosen = results.top_k(results.selectors[0], layer)
    rows = []
    for selector in selectors:
        look, of = style.selector_style(selector), {}
        for panel, (name, title) in zip(axes, RECALLS.items()):
            k, of[name] = results.curve(selector, layer, name)
            panel.plot(k, of[name], label=selector, **look)
            panel.vlines(chosen, *results.interval(layer, name, selector), color=look["color"], linewidth=2.5, alpha=0.5)
            panel.set_title(title, loc="left")
        rows += [(layer, selector, *point) for point in zip(k, *of.values())]
    for panel in axes:
        _axis_of_k(panel, chosen)
    _axis_of_shares(axes, [value for row in rows for value in row[3:]])
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, Table.from_rows(("layer", "selector", "k", *RECALLS), rows)
