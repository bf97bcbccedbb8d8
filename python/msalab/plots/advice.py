# SPDX-License-Identifier: MIT
"""Cost against what is kept, and the recommended setting: the tables of `msa-advise`."""

from __future__ import annotations

import math

import numpy as np

from .. import results
from ..table import Table
from . import style

KEY = ("selector", "block_size", "top_k", "forced_first", "forced_local")
_KEPT = tuple(f"{name}{end}" for name in ("mass_kept", "group_output_error") for end in results.ENDS)
_TARGETS = ("keep", "error", "budget")


class Advice:
    """settings: one row per setting, all layers together; times in seconds. layers: one row per layer,
    its own setting, or dense. chosen: the row of the setting that is recommended, or else nearest to the
    target. plan: of it, time over dense attention's, mass kept, and its layers that stay dense."""

    def __init__(self, answer: results.Report):
        options, (measured,) = answer.run["options"], answer["measured"].records()
        settings, singled = answer["settings"], answer["advice"]
        if not len(settings):
            raise results.ResultsError(f"{answer.path}: has no settings")
        keys = [tuple(row[name] for name in KEY) for row in settings.records()]
        roles = {role: [tuple(row[name] for name in KEY) for row in singled.where(setting_role=role).records()]
                 for role in ("recommended", "nearest", "front")}
        self.recommended = bool(roles["recommended"])
        plan = singled.row(setting_role="recommended" if self.recommended else "nearest")
        self.settings = Table(
            **settings.select(*KEY).columns, tokens=settings["budget"],
            **settings.select(*_KEPT, "seconds", "share_of_dense").columns,
            on_front=np.array([key in roles["front"] for key in keys]), is_bound=settings["is_bound"])
        self.chosen = keys.index(tuple(plan[name] for name in KEY))
        self.plan = (plan["share_of_dense"], plan["mass_kept"],
                     tuple(int(layer) for layer in plan["dense_layers"].split()))
        self.layers = self._layers(answer)
        name, = (name for name in _TARGETS if options[name] is not None)
        self.target = f"{name} {options[name]:g}"  # "keep 0.95"
        self.where = (f"{options['phase']} of {options['context']} tokens on {options['hardware']}"
                      + (", EXTRAPOLATED" if measured["is_extrapolated"] else ""))
        self.dense_seconds = measured["dense_seconds"]
        self.definitions = answer.definitions

    @staticmethod
    def _layers(answer: results.Report) -> Table:
        own = {row["layer"]: row for row in answer["own_settings"].records()}
        names = (*KEY, "budget", *_KEPT, "seconds_of_layer", "share_of_dense_layer")
        rows = []
        for layer in answer["layers"].records():
            setting = own.get(layer["layer"])
            rows.append([layer["layer"], setting is None,
                         *(["", 0, 0, 0, 0, 0, *[math.nan] * 6, layer["dense_seconds_of_layer"], 1.0]
                           if setting is None else (setting[name] for name in names))])
        return Table.from_rows(("layer", "stays_dense", *KEY, "tokens", *_KEPT, "seconds", "share_of_dense"), rows)


def read_advice(path) -> Advice:
    return Advice(results.open(path, "msa-advise"))


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
    style.sentence(axes, f"{advice.target}: {word} {setting_name(of, row)}{stay}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center",
                  ncols=3 if max(map(len, names)) < 16 else 2)
    return figure, Table(**{name: values for name, values in of.columns.items()},
                         chosen=np.arange(len(of)) == row)
