# SPDX-License-Identifier: MIT
"""Selectors at equal budgets: the summary.json of `msa-compare`."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.ticker import FuncFormatter

from .. import results
from ..results import ResultsError
from ..table import Table
from . import style

INTERVALS = ("mass_kept_low", "mass_kept_high")  # 95 %; NaN where there are none
COLUMNS = ("layer", "selector", "setting", "token_budget", "tokens_allowed", "tokens_read", "mass_kept",
           "oracle_mass", "group_output_error", "index_flops", "index_bytes", "attention_flops",
           "attention_bytes", "rows_counted", *INTERVALS)
SHOWN = ("layer", "selector", "budget", "tokens_read", "over_budget", "mass_kept", "oracle_mass",
         "group_output_error")
UNITS = {"flops": (1e6, "MFLOP"), "bytes": (1e3, "kB")}
BASELINE = "random"  # what keeps no more does not set the axis


class Comparison(Table):
    """One row per layer, selector and setting, with the phase that all of them are in and whether
    a row reads more tokens than its budget allows."""

    definitions: dict[str, str]  # of the columns, as the run recorded them


def read_comparison(path) -> Comparison:
    answer = results.open(path, "msa-compare")
    rows = answer["selectors"].select(*COLUMNS)
    if not len(rows):
        raise ResultsError(f"{path}: has no rows")
    table = Comparison(**{"budget" if name == "token_budget" else name: values
                          for name, values in rows.columns.items()})
    table.columns["selector"] = np.array(_lines(table))
    table.columns["phase"] = np.full(len(table), answer.run["options"]["phase"])
    table.columns["over_budget"] = table["tokens_read"] > table["tokens_allowed"]
    table.definitions = answer.definitions
    return table


def _lines(table: Table) -> list[str]:
    """The line that each row is a point of: with the first block and without are two."""
    settings = set(table.select("selector", "setting").rows())
    names = []
    for selector, setting in table.select("selector", "setting").rows():
        budget, _, variant = setting.partition(",")
        is_other = variant.startswith("first=") and (selector, budget) in settings
        names.append(f"{selector}:{variant}" if is_other else selector)
    return names


def _selectors(table: Table) -> list[str]:
    """Best first at the largest budget, the oracle before all."""
    largest = table.where(budget=table["budget"].max())
    kept = {}
    for name, mass in zip(largest["selector"].tolist(), largest["mass_kept"].tolist()):
        kept.setdefault(name, mass)
    return sorted(kept, key=lambda name: (name != "oracle", -kept[name]))


def _in_colour(here: Table, front=()) -> list[str]:
    """Selectors that a picture must name: the well-known ones, the best one, those of its front."""
    names = _selectors(here)
    best = [name for name in names if "oracle" not in name][:1]
    return [name for name in names
            if name.partition(style.FORCED)[0] in style.IN_COLOUR or name in (*best, *here["selector"][list(front)].tolist())]


def _draw_lines(axes, cost: np.ndarray, here: Table, named: list[str]):
    """Mass kept against cost, a line per selector: those in `named` in colour with their names at
    the ends, the others grey, whose names show where a pointer rests on them. Hollow: a choice that
    reads more tokens than its budget."""
    ends, colours = {}, {}
    names = _selectors(here)
    for name in names:
        of_name = here["selector"] == name
        x, kept = cost[of_name], here["mass_kept"][of_name]
        over = here["over_budget"][of_name]
        coloured = name in named
        look = (style.selector_style(name) if coloured
                else {"color": style.OTHERS, "zorder": 1.5})
        line, = axes.plot(x, kept, label=name if coloured else "others",
                          linewidth=1.4 if coloured else 1, **look)
        style.name_on_hover(line, name)
        if over.any():
            axes.plot(x[over], kept[over], linestyle="", marker=look.get("marker") or "o",
                      color=look["color"], markerfacecolor="white", zorder=2.5,
                      label=f"{name}, over its budget")
        known = np.flatnonzero(~np.isnan(kept))
        if coloured and len(known):
            ends[name] = (x[known[-1]], kept[known[-1]])
            colours[name] = look["color"]
    below = _clip_baseline(axes, here)
    style.label_ends(axes, {name: end for name, end in ends.items() if name not in below}, colours)
    grey = len(names) - len(named)
    notes = [f"grey: {grey} other selector{'s' * (grey > 1)}"] if grey else []
    if here["over_budget"].any():
        notes.append("hollow: reads more than its budget")
    if notes:
        style.sentence(axes, "; ".join(notes), color=style.GUIDE)


def _clip_baseline(axes, here: Table) -> list[str]:
    """Selectors that never keep more than the baseline's most do not set the axis, nor does the
    baseline. What it cuts off of them is told in words; returns those of which nothing is left."""
    kept = {name: values[~np.isnan(values)] for name in dict.fromkeys(here["selector"])
            for values in [here["mass_kept"][here["selector"] == name]]}
    kept = {name: values for name, values in kept.items() if len(values)}
    if BASELINE not in kept:
        return []
    low = {name: values for name, values in kept.items() if values.max() <= kept[BASELINE].max()}
    others = [values for name, values in kept.items() if name not in low]
    if not others:
        return []
    top, least = max(map(np.max, others)), min(map(np.min, others))
    bottom = least - 0.05 * (top - least or 1)
    cut = {name: values for name, values in low.items() if values.min() < bottom}
    if not cut:
        return []
    axes.set_ylim(bottom, top + 0.05 * (top - bottom))
    for line in axes.lines:
        if line.get_label() in cut:
            line.set_zorder(1.6)  # under the words, the others over them
    least, most = min(map(np.min, cut.values())), max(map(np.max, cut.values()))
    axes.annotate(f"{', '.join(sorted(cut))}: {least:.2f} to {most:.2f}", (0.02, 0.0),
                  (0.02, 0.06), xycoords="axes fraction", textcoords="axes fraction",
                  color=style.GUIDE, arrowprops={"arrowstyle": "->", "color": style.GUIDE}, zorder=1.9,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})
    return [name for name, values in cut.items() if values.max() < bottom]


@style.styled
def mass_kept_versus_budget(table: Table, layer: int):
    """Mass kept against the tokens that a query reads at each budget, one line per selector;
    shades are 95 % intervals."""
    here = table.where(layer=layer)
    figure = style.new_figure(4.0)
    axes = figure.subplots()
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set(xlabel=f"tokens read per query; layer {layer}", ylabel="mass kept")
    named = _in_colour(here)
    _draw_lines(axes, here["tokens_read"], here, named)
    _shade_intervals(axes, here["tokens_read"], here, named)
    return figure, Table(**{name: here[name] for name in
                            ("layer", "selector", "setting", "budget", "tokens_read",
                             "over_budget", "mass_kept", *INTERVALS)})


def _shade_intervals(axes, cost: np.ndarray, here: Table, named: list[str]):
    """The 95 % intervals of the selectors in colour."""
    for name in named:
        of_name = here["selector"] == name
        axes.fill_between(cost[of_name], *(here[end][of_name] for end in INTERVALS), alpha=0.15,
                          linewidth=0, color=style.selector_style(name)["color"], zorder=1)


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
    style.plain_log_ticks(axes.xaxis)
    axes.set(xlabel=f"{unit} of index and attention per query; layer {layer}",
             ylabel="mass kept")
    axes.plot(total[front] / scale, here["mass_kept"][front], color=style.MASKED, linewidth=5,
              drawstyle="steps-post", solid_joinstyle="round", zorder=1)
    _draw_lines(axes, total / scale, here, _in_colour(here, front))
    return figure, Table(layer=here["layer"], selector=here["selector"], budget=here["budget"],
                         mass_kept=here["mass_kept"], on_front=np.isin(range(len(here)), front),
                         **{cost: total})


def comparison_definitions(table: Comparison) -> dict[str, str]:
    """Of the columns of comparison_numbers."""
    costs = {f"{part}_{unit}": f"{table.definitions[f'{part}_{cost}']}, in {unit}"
             for cost, (_, unit) in UNITS.items() for part in ("index", "attention")}
    return {**{name: table.definitions[name] for name in SHOWN[2:] if name in table.definitions},
            "over_budget": f"Is tokens_read larger than allowed? {table.definitions['tokens_allowed']}",
            **costs}


def comparison_numbers(table: Table) -> Table:
    """What the pictures show in one table, costs per query in the units of their axes."""
    costs = {f"{part}_{unit}": table[f"{part}_{cost}"] / scale
             for cost, (scale, unit) in UNITS.items() for part in ("index", "attention")}
    return Table(**{name: table[name] for name in SHOWN}, **costs)
