# SPDX-License-Identifier: MIT
"""What layers lose with the ids of an earlier one: the tables of `msa-reuse`."""

from __future__ import annotations

import math

import numpy as np

from .. import results
from ..table import Table
from . import style

MEASURES = ("mass_kept", "mass_lost", "block_recall", "own_recall", "output_error")
_ESTIMATES = tuple(f"{name}{end}" for name in MEASURES for end in results.ENDS)
_TARGETS = ("keep", "lose", "error")


class Sharing:
    """pairs: one row per source and target, a layer with its own ids among them. distances: means
    over the pairs at one distance. patterns: own ids, those asked for, the best of each number of
    computing layers, and those that reach the target."""

    def __init__(self, answer: results.Report):
        options, (measured,) = answer.run["options"], answer["measured"].records()
        pairs, distances, patterns = (answer[name] for name in ("pairs", "distances", "patterns"))
        if not len(pairs) or not len(distances):
            raise results.ResultsError(f"{answer.path}: has no pairs of layers")
        self.pairs = pairs.select("source", "target", "distance", *_ESTIMATES)
        self.distances = distances.select("distance", "pairs", *_ESTIMATES)
        roles = patterns["pattern_role"].tolist()
        self.patterns = Table(**patterns.select(
            "pattern", "computing", "computing_layers", *_ESTIMATES, "most_lost", "seconds",
            "share_of_own", "saved_seconds", "saved_flops", "saved_bytes").columns,
            is_best=[role == "best" for role in roles])
        # The rows that reach the target "in every layer", "in the mean".
        self.chosen = {words: roles.index(role) for words, role in (
            ("in every layer", "target_each"), ("in the mean", "target_mean")) if role in roles}
        # The mass that random blocks lose against own ids.
        self.random_lost = patterns["mass_kept"][roles.index("own")] - measured["random_mass_kept"]
        name, = (name for name in _TARGETS if options[name] is not None)
        self.target = f"{name} {options[name]:g}"  # "lose 0.01"
        self.selector = str(options["selector"])
        self.where = (f"{options['phase']} of {options['context']} tokens on {options['hardware']}"
                      + (", EXTRAPOLATED" if measured["is_extrapolated"] else ""))
        self.definitions = answer.definitions


def read_sharing(path) -> Sharing:
    return Sharing(results.open(path, "msa-reuse"))


def _errors(of: Table, name: str) -> list[np.ndarray]:
    """What an interval has below and above its value."""
    return [np.maximum(0, of[name] - of[f"{name}_low"]),
            np.maximum(0, of[f"{name}_high"] - of[name])]


def _target_line(axes, sharing: Sharing):
    if sharing.target.startswith("lose"):
        axes.axhline(float(sharing.target.split()[1]), color=style.GUIDE, linewidth=1,
                     linestyle=":")


def _drawn_by_distance(sharing: Sharing) -> Table:
    """The pairs, the means at each distance, and what random blocks lose."""
    none = math.nan
    rows = [("pair", *row[:3], 1, *row[3:]) for row in sharing.pairs.rows()]
    rows += [("mean", none, none, *row) for row in sharing.distances.rows()]
    lost = _ESTIMATES.index("mass_lost")
    rows.append(("random", none, none, none, none, *[none] * lost, sharing.random_lost,
                 *[none] * (len(_ESTIMATES) - lost - 1)))
    return Table.from_rows(("of", "source", "target", "distance", "pairs", *_ESTIMATES), rows)


@style.styled
def loss_by_distance(sharing: Sharing):
    """What is kept with the ids of a layer that lies so many layers before. Above, mass lost: a
    point per pair of layers, and their mean with its 95 % interval. Below, means of the recalls and
    of the output error."""
    pairs, means = sharing.pairs, sharing.distances
    figure = style.new_figure(5.6)
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 2))
    for source, target, distance, lost in zip(*(pairs[name].tolist() for name in (
            "source", "target", "distance", "mass_lost"))):
        if distance > 0:
            point, = above.plot(distance, lost, marker="o", markersize=4, color=style.OTHERS,
                                zorder=1)
            style.name_on_hover(point, f"layer {target} with ids of layer {source}")
    above.errorbar(means["distance"], means["mass_lost"], _errors(means, "mass_lost"), marker="o",
                   color=style.PAIR[0], capsize=2, elinewidth=1, label="mean over the pairs")
    above.axhline(sharing.random_lost, color=style.DENSE, linestyle="--", linewidth=1,
                  label="random blocks")
    _target_line(above, sharing)
    for place, (name, label) in enumerate((("own_recall", "recall of own ids"),
                                           ("block_recall", "recall of the oracle"),
                                           ("output_error", "output error"))):
        below.errorbar(means["distance"], means[name], _errors(means, name), label=label,
                       capsize=2, elinewidth=1, **style.series_style(place + 1))
    below.set_ylim(bottom=0)
    below.xaxis.get_major_locator().set_params(integer=True)
    below.set(xlabel="distance in layers", ylabel="recall, output error")
    above.set(ylabel="mass lost")
    above.set_title(f"ids of {sharing.selector} from an earlier layer", loc="left")
    handles, labels = (sum(both, []) for both in zip(above.get_legend_handles_labels(),
                                                     below.get_legend_handles_labels()))
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure, _drawn_by_distance(sharing)


@style.styled
def sharing_patterns(sharing: Sharing):
    """Mass lost, mean over the layers, against the time of the layers relative to own ids in each:
    the line joins the patterns of the least loss with so many layers that compute ids. Ringed:
    those with the fewest that reach the target, in every layer and in the mean."""
    of = sharing.patterns
    figure = style.new_figure(4.0)
    axes = figure.subplots()
    best = np.flatnonzero(of["is_best"])
    front = Table(**{name: values[best] for name, values in of.columns.items()})
    axes.errorbar(front["share_of_own"], front["mass_lost"], _errors(front, "mass_lost"),
                  marker="o", markersize=4, color=style.PAIR[0], capsize=2, elinewidth=1,
                  label="least loss")
    asked = [row for row in range(1, len(of))
             if not of["is_best"][row] and row not in sharing.chosen.values()]
    for place, row in enumerate(asked):
        axes.plot(of["share_of_own"][row], of["mass_lost"][row], linestyle="",
                  **style.series_style(place + 1), label=of["pattern"][row])
    for (words, row), (size, colour) in zip(sharing.chosen.items(),
                                            ((13, style.REFERENCE), (9, style.GUIDE))):
        axes.plot(of["share_of_own"][row], of["mass_lost"][row], linestyle="", marker="o",
                  markersize=size, markerfacecolor="none", markeredgecolor=colour,
                  markeredgewidth=1.6, zorder=4, label=f"target {words}")
    found = [f"{words} {of['computing'][row]} of {of['computing'][0]} compute ids"
             for words, row in sharing.chosen.items()]
    _target_line(axes, sharing)
    axes.set(xlabel=f"time / own ids in every layer\n{sharing.where}", ylabel="mass lost, mean")
    style.sentence(axes, f"{sharing.target}: {', '.join(found) or 'no pattern'}")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure, of
