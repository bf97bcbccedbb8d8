# SPDX-License-Identifier: MIT
"""Cost against what is kept, and the recommended setting: the summary.json of `msa-advise`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..table import Table
from . import style
from .cost import read_json
from .results import ResultsError

SIZES = ("selector", "block_size", "top_k", "forced_first", "forced_local", "tokens")
ESTIMATES = ("mass_kept", "group_output_error")


@dataclass(frozen=True)
class Advice:
    settings: Table  # one row per setting, all layers together; times in seconds
    layers: Table    # one row per layer: its own setting, or dense
    chosen: int      # row of the setting recommended, or else nearest to the target
    recommended: bool
    plan: tuple      # of it: time over dense attention's, mass kept, its layers that stay dense
    target: str      # "keep 0.95"
    where: str       # "prefill of 131072 tokens on h100"
    dense_seconds: float
    definitions: dict[str, str]


def _number(value) -> float:
    return math.nan if value is None else float(value)


def _row(setting: dict) -> list:
    ends = [_number(setting[name][end]) for name in ESTIMATES for end in ("value", "low", "high")]
    return [*(setting[name] for name in SIZES), *ends, setting["cost"]["seconds"],
            setting["cost"]["share_of_dense"]]


_COLUMNS = (*SIZES, *(f"{name}{end}" for name in ESTIMATES for end in ("", "_low", "_high")),
            "seconds", "share_of_dense")


def read_advice(path) -> Advice:
    summary = read_json(path, "msa-advise-summary")
    if not summary["settings"]:
        raise ResultsError(f"{path}: has no settings")
    rows = [_row(setting) for setting in summary["settings"]]
    settings = Table.from_rows(_COLUMNS, rows)
    on_front = {tuple(_row(setting)[:len(SIZES)]) for setting in summary["front"]}
    settings.columns["on_front"] = np.array([tuple(row[:len(SIZES)]) in on_front for row in rows])
    settings.columns["is_bound"] = np.array([setting["is_bound"]
                                             for setting in summary["settings"]])
    shown = summary["recommended"] or summary["nearest"]
    chosen = [tuple(row[:len(SIZES)]) for row in rows].index(tuple(shown[name] for name in SIZES))
    options, (target,) = summary["options"], summary["target"].items()
    layers = Table.from_rows(
        ("layer", "stays_dense", *_COLUMNS),
        ([layer["layer"], layer["stays_dense"],
          *(["", 0, 0, 0, 0, 0, *[math.nan] * 6, layer["dense_cost"]["seconds"], 1.0]
            if layer["stays_dense"] else _row(layer["recommended"]))]
         for layer in summary["layers"]))
    plan = (float(shown["cost"]["share_of_dense"]), _number(shown["mass_kept"]["value"]),
            tuple(shown["dense_layers"]))
    return Advice(settings, layers, chosen, summary["recommended"] is not None, plan,
                  f"{target[0]} {target[1]:g}",
                  f"{options['phase']} of {options['context']} tokens on {options['hardware']}"
                  + (", EXTRAPOLATED" if summary["is_extrapolated"] else ""),
                  summary["dense"]["seconds"],
                  {name: str(text) for name, text in summary["definitions"].items()})


def setting_name(settings: Table, row: int) -> str:
    return (f"{settings['selector'][row]}, Bk {settings['block_size'][row]}, "
            f"k {settings['top_k'][row]}, first {settings['forced_first'][row]}, "
            f"newest {settings['forced_local'][row]}")


def _marker_sizes(names: list[str]) -> dict[str, float]:
    """By which the options of one selector are told apart, as their fills do not at this size."""
    kinds = [name.partition(":")[0] for name in names]
    return {name: 4 + 1.5 * kinds[:place].count(kinds[place]) for place, name in enumerate(names)}


@style.styled
def cost_front(advice: Advice):
    """Mass kept against the time of all layers, relative to dense attention, a point per setting;
    the line is the Pareto front with its 95 % intervals. Ringed: the plan, which is the setting
    recommended, or else the nearest to the target, with the layers dense that it leaves so: its
    time is of all layers, its mass of the sparse ones."""
    of = advice.settings
    share, kept = of["share_of_dense"], of["mass_kept"]
    figure = style.new_figure(4.2)
    axes = figure.subplots()
    names = list(dict.fromkeys(of["selector"].tolist()))
    for name, size in _marker_sizes(names).items():
        here = of["selector"] == name
        look = style.selector_style(name)
        axes.plot(share[here], kept[here], label=name,
                  **{**look, "linestyle": "", "markersize": size, "alpha": 0.6})
    front = np.flatnonzero(of["on_front"])
    front = front[np.argsort(share[front])]
    axes.plot(share[front], kept[front], color=style.MASKED, linewidth=5, drawstyle="steps-post",
              solid_joinstyle="round", zorder=1)
    ends = [np.maximum(0, kept[front] - of["mass_kept_low"][front]),
            np.maximum(0, of["mass_kept_high"][front] - kept[front])]
    axes.errorbar(share[front], kept[front], ends, linestyle="", color=style.GUIDE, linewidth=1,
                  capsize=2, zorder=2.5)
    row = advice.chosen
    word = "recommended" if advice.recommended else "nearest to the target"
    time, mass, dense = advice.plan
    axes.plot(time, mass, linestyle="", marker="o", markersize=13,
              markerfacecolor="none", markeredgecolor=style.REFERENCE, markeredgewidth=1.6,
              label=word, zorder=4)
    if advice.target.startswith("keep"):
        axes.axhline(float(advice.target.split()[1]), color=style.GUIDE, linewidth=1,
                     linestyle=":")
    axes.set_xscale("log")
    style.plain_log_ticks(axes.xaxis)
    axes.set(xlabel=f"time / dense attention\n{advice.where}", ylabel="mass kept")
    if dense:  # away from the setting's own point, which has every layer sparse
        axes.annotate("", (time, mass), (share[row], kept[row]), arrowprops={
            "arrowstyle": "->", "color": style.REFERENCE, "linewidth": 0.8})
    stay = f",\n{len(dense)} of {len(set(advice.layers['layer'].tolist()))} layers dense" if dense else ""
    axes.set_title(f"{advice.target}: {word} {setting_name(of, row)}{stay}", loc="left", fontsize=8)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center",
                  ncols=3 if max(map(len, names)) < 16 else 2)
    return figure, Table(**{name: values for name, values in of.columns.items()},
                         chosen=np.arange(len(of)) == row)
