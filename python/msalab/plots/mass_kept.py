# SPDX-License-Identifier: MIT
"""What a larger budget would keep."""

from __future__ import annotations

import math

from matplotlib.ticker import FuncFormatter, LogLocator

from ..table import Table
from . import style
from .results import Results

UNKNOWN = (math.nan, math.nan)


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
        panel.axvline(chosen, color=style.GUIDE, linestyle=":", linewidth=1.2)
        panel.annotate(f"k = {chosen}", (chosen, 0.03), (4, 0), textcoords="offset points",
                       xycoords=("data", "axes fraction"), fontsize=9, color=style.GUIDE)
        panel.set_title(f"layer {layer}")
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_locator(LogLocator(base=2, numticks=16))
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    known = [mass for *_, mass, _, _ in rows if not math.isnan(mass)]
    if not known:
        style.say_instead(axes[0])
    bottom = math.floor(10 * min(known + [0.9])) / 10
    axes[-1].set_ylim(bottom, 1 + 0.02 * (1 - bottom))
    axes[-1].set_xlabel("selected blocks per query and group, k")
    figure.supylabel("mass kept", fontsize=10)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=3)
    return figure, Table.from_rows(("layer", "selector", "k", "mass_kept", "mass_kept_low",
                                    "mass_kept_high"), rows)
