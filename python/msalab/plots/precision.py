# SPDX-License-Identifier: MIT
"""What number formats lose against their bits: the tables of `msa-precision`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation

from .. import results
from ..table import Table
from . import style

PARTS = {"index": "index operands", "projections": "index projections", "cache": "KV cache"}
# What the target is of, the larger loss of the two: 1 - a share, or an error.
_SHARES = ("mass_share", "recall_share")
_LOSSES = {"index": _SHARES, "projections": _SHARES, "cache": ("dense_error", "sparse_error")}
_MEASURES = ("precision_recall", "block_recall", "mass_kept", "mass_share", "recall_share",
             "output_error", "dense_error", "sparse_error")
_ESTIMATES = tuple(f"{name}{end}" for name in _MEASURES for end in results.ENDS)
_FLOOR = 1e-5  # smaller losses are drawn here
_FLOOR_TEXT = "≤10$^{-5}$"


@dataclass(frozen=True)
class Precisions:
    rows: Table        # a row per part and precision; NaN where a part has no such measure
    drawn: Table       # what the picture shows of them
    targets: dict[str, float]      # the largest loss allowed, by part
    recommended: dict[str, str]    # name by part, of those that have one
    definitions: dict[str, str]


def _loss(part: str, of: dict) -> list[float]:
    """The loss of the targeted measure that is worst, with its interval."""
    losses = []
    for name in _LOSSES[part]:
        value, low, high = (of[f"{name}{end}"] for end in results.ENDS)
        if not math.isnan(value):
            losses.append([1 - value, 1 - high, 1 - low] if name in _SHARES
                          else [value, low, high])
    return max(losses, key=lambda loss: loss[0], default=[math.nan] * 3)


def read_precision(path) -> Precisions:
    answer = results.open(path, "msa-precision")
    if not len(answer["cache"]):
        raise results.ResultsError(f"{answer.path}: has no formats of the {PARTS['cache']}")
    rows, drawn, recommended = [], [], {}
    for part, words in PARTS.items():
        for row in answer[part].records():
            chosen = row["is_recommended"]
            if chosen:
                recommended[part] = row["precision"]
            first = [words, row["precision"], row["format"], row.get("scale", "none"),
                     row.get("rotated", False), row.get("product", ""),
                     row.get("bits_per_token", math.nan),
                     row["bits_per_weight" if part == "projections" else "bits_per_value"]]
            rows.append([*first, *(row.get(name, math.nan) for name in _ESTIMATES),
                         row["worst_layer"], row["reaches"], chosen])
            drawn.append([*first, *_loss(part, row), chosen])
    columns = ("part", "precision", "format", "scale", "rotated", "product", "bits_per_token",
               "bits_per_value")
    options = answer.run["options"]
    return Precisions(
        Table.from_rows((*columns, *_ESTIMATES, "worst_layer", "reaches", "recommended"), rows),
        Table.from_rows((*columns, "loss", "loss_low", "loss_high", "recommended"), drawn),
        {part: float(options["error"]) if part == "cache" else 1 - float(options["keep"])
         for part in PARTS}, recommended, answer.definitions)


def _draw_part(axes, of: Table, formats: list[str], target: float):
    """A point per precision; below the floor, at the floor."""
    for row in range(len(of)):
        loss = of["loss"][row]
        if math.isnan(loss):
            continue
        look = style.series_style(formats.index(of["format"][row]))
        bits, height = of["bits_per_value"][row], max(loss, _FLOOR)
        hollow = of["rotated"][row] or of["product"][row] not in ("", "f32")
        ends = [max(0.0, height - max(of["loss_low"][row], _FLOOR)),
                max(0.0, max(of["loss_high"][row], _FLOOR) - height)]
        bars = axes.errorbar(bits, height, [[ends[0]], [ends[1]]], linestyle="", capsize=2,
                             elinewidth=1, zorder=2, **look,
                             markerfacecolor="none" if hollow else look["color"])
        style.name_on_hover(bars.lines[0], str(of["precision"][row]))
        if of["recommended"][row]:
            axes.plot(bits, height, linestyle="", marker="o", markersize=13,
                      markerfacecolor="none", markeredgecolor=style.REFERENCE,
                      markeredgewidth=1.6, zorder=4, label="recommended")
    if target > _FLOOR:
        axes.axhline(target, color=style.GUIDE, linewidth=1, linestyle=":", zorder=1,
                     label="target")
    axes.set_yscale("log")
    axes.set_ylim(bottom=_FLOOR / 2)
    plain = LogFormatterSciNotation()
    plain.set_axis(axes.yaxis)
    axes.yaxis.set_major_formatter(FuncFormatter(
        lambda loss, place: _FLOOR_TEXT if math.isclose(loss, _FLOOR) else plain(loss, place)))
    axes.set_xscale("log", base=2)
    axes.set_xlim(3.5, 36)
    axes.set_xticks([4, 8, 16, 32], ["4", "8", "16", "32"])


@style.styled
def loss_by_bits(precisions: Precisions):
    """Loss of each format against its bits per value, scales included: of the index operands and
    of the weights of their projections, the larger of what is lost of mass and of recall; of the KV
    cache, the larger error of dense and sparse attention. Hollow: rotated; of projections, with
    their product rounded too. Ringed: recommended. Dotted: the target."""
    drawn = precisions.drawn
    parts = [part for part, words in PARTS.items() if words in set(drawn["part"])]
    formats = list(dict.fromkeys(drawn["format"].tolist()))
    figure = style.new_figure(3.2 * len(parts) + 0.8)
    panels = np.atleast_1d(figure.subplots(len(parts), sharex=True))
    for axes, part in zip(panels, parts):
        _draw_part(axes, drawn.where(part=PARTS[part]), formats, precisions.targets[part])
        axes.set(ylabel="output error" if part == "cache" else "loss of mass or of recall")
        style.sentence(axes, f"{PARTS[part]}: {precisions.recommended.get(part, 'no format')}")
    panels[-1].set(xlabel=f"bits per value, scales included\n{_FLOOR_TEXT}: next to nothing, 0 or less")
    for place, name in enumerate(formats):
        panels[-1].plot([], [], linestyle="", label=name, **style.series_style(place))
    panels[-1].plot([], [], linestyle="", marker="o", markerfacecolor="none",
                    color=style.GUIDE, label="rotated")
    found = {label: handle for axes in reversed(panels)
             for handle, label in zip(*axes.get_legend_handles_labels())}
    found |= {label: found.pop(label) for label in ("target", "recommended") if label in found}
    figure.legend(found.values(), found.keys(), loc="outside lower center", ncols=5)
    return figure, drawn
