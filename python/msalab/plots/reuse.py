# SPDX-License-Identifier: MIT
"""What layers lose with the ids of an earlier one: the summary.json of `msa-reuse`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from . import style
from .cost import read_json
from .results import ResultsError
from .table import Table

MEASURES = ("mass_kept", "mass_lost", "block_recall", "own_recall", "output_error")
_ESTIMATES = tuple(f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high"))


@dataclass(frozen=True)
class Sharing:
    pairs: Table      # one row per source and target, a layer with its own ids among them
    distances: Table  # means over the pairs at one distance
    patterns: Table   # own ids, those asked for, and the best of each number of computing layers
    chosen: int | None  # the row of the pattern with which every layer reaches the target, else the
    every_layer: bool   # mean; None: no pattern does
    target: str       # "lose 0.01"
    selector: str
    where: str        # "prefill of 131072 tokens on h100"
    definitions: dict[str, str]


def _number(value) -> float:
    return math.nan if value is None else float(value)


def _estimates(of: dict) -> list[float]:
    return [_number(of[name][end]) for name in MEASURES for end in ("value", "low", "high")]


def _listed(layers) -> str:
    return " ".join(str(int(layer)) for layer in layers)


def _pattern(of: dict, is_best: bool) -> list:
    return [str(of["name"]), len(of["computing_layers"]), _listed(of["computing_layers"]),
            *_estimates(of), _number(of["most_lost"]), of["cost"]["seconds"],
            of["cost"]["share_of_own"], of["saved"]["seconds"], of["saved"]["flops"],
            of["saved"]["bytes"], is_best]


def read_sharing(path) -> Sharing:
    summary = read_json(path, "msa-reuse-summary")
    if not summary["pairs"] or not summary["distances"]:
        raise ResultsError(f"{path}: has no pairs of layers")
    pairs = Table.from_rows(("source", "target", "distance", *_ESTIMATES),
                            ([*(int(pair[name]) for name in ("source", "target", "distance")),
                              *_estimates(pair)] for pair in summary["pairs"]))
    distances = Table.from_rows(("distance", "pairs", *_ESTIMATES),
                                ([int(at["distance"]), int(at["pairs"]), *_estimates(at)]
                                 for at in summary["distances"]))
    rows = [_pattern(summary["own"], False),
            *(_pattern(pattern, False) for pattern in summary["patterns"]),
            *(_pattern(pattern, True) for pattern in summary["front"])]
    shown = summary["each"] or summary["mean"]
    if shown:
        rows.append(_pattern(shown, False))
    patterns = Table.from_rows(
        ("pattern", "computing", "computing_layers", *_ESTIMATES, "most_lost", "seconds",
         "share_of_own", "saved_seconds", "saved_flops", "saved_bytes", "is_best"), rows)
    (name, value), = summary["target"].items()
    options = summary["options"]
    return Sharing(pairs, distances, patterns, len(rows) - 1 if shown else None,
                   summary["each"] is not None, f"{name} {value:g}", str(options["selector"]),
                   f"{options['phase']} of {options['context']} tokens on {options['hardware']}",
                   {name: str(text) for name, text in summary["definitions"].items()})


def _errors(of: Table, name: str) -> list[np.ndarray]:
    """What an interval has below and above its value."""
    return [np.maximum(0, of[name] - of[f"{name}_low"]),
            np.maximum(0, of[f"{name}_high"] - of[name])]


def _target_line(axes, sharing: Sharing):
    if sharing.target.startswith("lose"):
        axes.axhline(float(sharing.target.split()[1]), color=style.GUIDE, linewidth=1,
                     linestyle=":")


@style.styled
def loss_by_distance(sharing: Sharing):
    """Mass lost with the ids of a layer that lies so many layers before: a point per pair of
    layers, and their mean with its 95 % interval."""
    pairs = sharing.pairs
    others = Table(**{name: values[pairs["distance"] > 0]
                      for name, values in pairs.columns.items()})
    figure = style.new_figure(3.4)
    axes = figure.subplots()
    for source, target, distance, lost in zip(*(others[name].tolist() for name in (
            "source", "target", "distance", "mass_lost"))):
        point, = axes.plot(distance, lost, marker="o", markersize=4, color=style.OTHERS, zorder=1)
        style.name_on_hover(point, f"layer {target} with ids of layer {source}")
    means = sharing.distances
    axes.errorbar(means["distance"], means["mass_lost"], _errors(means, "mass_lost"), marker="o",
                  color=style.PAIR[0], capsize=2, elinewidth=1, label="mean over the pairs")
    _target_line(axes, sharing)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="distance in layers", ylabel="mass lost")
    axes.set_title(f"ids of {sharing.selector} from an earlier layer", loc="left", fontsize=8)
    axes.legend(loc="best")
    return figure, others


@style.styled
def sharing_patterns(sharing: Sharing):
    """Mass lost, mean over the layers, against the time of the layers relative to own ids in each:
    the line joins the best pattern of each number of layers that compute ids. Ringed: the one with
    the fewest that reaches the target."""
    of = sharing.patterns
    figure = style.new_figure(3.8)
    axes = figure.subplots()
    best = np.flatnonzero(of["is_best"])
    front = Table(**{name: values[best] for name, values in of.columns.items()})
    axes.errorbar(front["share_of_own"], front["mass_lost"], _errors(front, "mass_lost"),
                  marker="o", markersize=4, color=style.PAIR[0], capsize=2, elinewidth=1,
                  label="best of so many")
    last = len(of) - 1 if sharing.chosen is not None else len(of)
    asked = [row for row in range(1, last) if not of["is_best"][row]]
    for place, row in enumerate(asked):
        axes.plot(of["share_of_own"][row], of["mass_lost"][row], linestyle="",
                  **style.series_style(place + 1), label=of["pattern"][row])
    title = f"{sharing.target}: no pattern"
    if sharing.chosen is not None:
        row = sharing.chosen
        reached = "in every layer" if sharing.every_layer else "in the mean"
        axes.plot(of["share_of_own"][row], of["mass_lost"][row], linestyle="", marker="o",
                  markersize=13, markerfacecolor="none", markeredgecolor=style.REFERENCE,
                  markeredgewidth=1.6, zorder=4, label=f"within the target {reached}")
        title = (f"{sharing.target}: {of['computing'][row]} of {of['computing'][0]} layers "
                 f"compute ids")
    _target_line(axes, sharing)
    axes.set(xlabel=f"time / own ids in every layer, {sharing.where}", ylabel="mass lost, mean")
    axes.set_title(title, loc="left", fontsize=8)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure, of
