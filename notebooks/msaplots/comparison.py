# SPDX-License-Identifier: MIT
"""Selectors at equal budgets: the summary.json of `msa-compare`."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from . import style
from .cost import read_json
from .results import ResultsError
from .table import Table

COLUMNS = ("layer", "selector", "setting", "budget", "mass_kept", "oracle_mass", "output_error",
           "index_flops", "index_bytes", "attention_flops", "attention_bytes", "rows_counted")
SHOWN = ("layer", "selector", "budget", "mass_kept", "oracle_mass", "output_error")
UNITS = {"flops": (1e6, "MFLOP"), "bytes": (1e3, "kB")}


def read_comparison(path) -> Table:
    """One row per layer, selector and setting, with the phase that all of them are in."""
    summary = read_json(path, "msa-compare-summary")
    if not summary["rows"]:
        raise ResultsError(f"{path}: has no rows")
    phase = summary["options"]["phase"]
    return Table.from_rows((*COLUMNS, "phase"),
                           ([math.nan if row[name] is None else row[name] for name in COLUMNS]
                            + [phase] for row in summary["rows"]))


def _selectors(table: Table) -> list[str]:
    """Best first at the largest budget, the oracle before all."""
    largest = table.where(budget=table["budget"].max())
    kept = {}
    for name, mass in zip(largest["selector"].tolist(), largest["mass_kept"].tolist()):
        kept.setdefault(name, mass)
    return sorted(kept, key=lambda name: (name != "oracle", -kept[name]))


def _draw_lines(axes, cost: np.ndarray, here: Table):
    """Mass kept against cost, a line per selector: a handful in colour with their names at the
    ends, the others grey."""
    ends, colours = {}, {}
    names = _selectors(here)
    for name in names:
        of_name = here["selector"] == name
        x, kept = cost[of_name], here["mass_kept"][of_name]
        if name not in style.IN_COLOUR:
            axes.plot(x, kept, label="others", color=style.OTHERS, linewidth=1, zorder=1.5)
            continue
        look = style.selector_style(name, names)
        axes.plot(x, kept, label=name, linewidth=1.4, **look)
        known = np.flatnonzero(~np.isnan(kept))
        if len(known):
            ends[name] = (x[known[-1]], kept[known[-1]])
            colours[name] = look["color"]
    style.label_ends(axes, ends, colours)
    grey = len(names) - sum(name in style.IN_COLOUR for name in names)
    if grey:
        axes.set_title(f"grey: {grey} other selector{'s' * (grey > 1)}", loc="left", fontsize=9,
                       color=style.GUIDE)


@style.styled
def mass_kept_versus_budget(table: Table, layer: int):
    """Mass kept against the budget in tokens, one line per selector."""
    here = table.where(layer=layer)
    figure = style.new_figure(4.0)
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(set(here["budget"].tolist())))
    axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(xlabel=f"budget, tokens per query; layer {layer}", ylabel="mass kept")
    _draw_lines(axes, here["budget"], here)
    return figure, Table(**{name: here[name] for name in
                            ("layer", "selector", "setting", "budget", "mass_kept")})


def pareto_front(cost: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Which points no other one matches in mass kept at the same cost or less, by cost."""
    best, front = -math.inf, []
    for place in np.lexsort((-kept, cost)):
        if kept[place] > best:  # never so for NaN
            best = kept[place]
            front.append(place)
    return np.array(front, int)


@style.styled
def mass_kept_versus_cost(table: Table, layer: int, cost: str = "flops"):
    """Mass kept against all that the selection and its attention cost per query (flops or
    bytes), a line through the budgets of each selector: up and to the left is better. The broad
    grey line is the Pareto front."""
    here = table.where(layer=layer)
    figure = style.new_figure(4.0)
    axes = figure.subplots()
    total = here[f"index_{cost}"] + here[f"attention_{cost}"]
    scale, unit = UNITS[cost]
    front = pareto_front(total, here["mass_kept"])
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set(xlabel=f"{unit} of index and attention per query; layer {layer}",
             ylabel="mass kept")
    axes.plot(total[front] / scale, here["mass_kept"][front], color=style.MASKED, linewidth=5,
              drawstyle="steps-post", solid_joinstyle="round", zorder=1)
    _draw_lines(axes, total / scale, here)
    return figure, Table(layer=here["layer"], selector=here["selector"], budget=here["budget"],
                         mass_kept=here["mass_kept"], on_front=np.isin(range(len(here)), front),
                         **{cost: total})


def comparison_numbers(table: Table) -> Table:
    """What the pictures show in one table, costs per query in the units of their axes."""
    costs = {f"{part}_{unit}": table[f"{part}_{cost}"] / scale
             for cost, (scale, unit) in UNITS.items() for part in ("index", "attention")}
    return Table(**{name: table[name] for name in SHOWN}, **costs)
