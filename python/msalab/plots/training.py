# SPDX-License-Identifier: MIT
"""How the Index Branch learned (fig:training-dynamics-cpt a and b)."""

from __future__ import annotations

from matplotlib.ticker import MaxNLocator

from ..table import Table
from . import style
from .fit import FitResults

RECALLS = {"score_recall": "score recall", "mass_kept": "mass kept", "block_recall": "block recall"}


@style.styled
def training_curves(fit: FitResults, layer: int):
    """(a) KL of the training steps, solid in warm-up, dashed on the selected support, and on
    held-out queries, over all visible keys and on the selected support, dotted; (b) recall and mass kept on
    held-out queries. Bars are 95 % intervals, at the weights that are kept. The dotted line marks
    the switch."""
    curves = fit.curves(layer)
    figure = style.new_figure(4.6)
    kl, recall = figure.subplots(2, 1, sharex=True)
    colours = [style.series_style(place) for place in range(len(RECALLS) + 1)]
    trained = {"color": colours[0]["color"], "linewidth": 1.2}
    switch, steps = curves.warmup_steps, len(curves.train_kl)
    if switch > 0:
        kl.plot(range(switch), curves.train_kl[:switch], label="training, all keys", **trained)
    if switch < steps:
        kl.plot(range(switch, steps), curves.train_kl[switch:], linestyle="--",
                label="training, selected", **trained)
    kl.plot(curves.step, curves.held_out["kl"], color=style.REFERENCE, marker="o", markersize=3.5,
            label="held out, all keys")
    kl.plot(curves.step, curves.held_out["kl_selected"], color=style.REFERENCE, linestyle=":",
            marker="o", markersize=3.5, markerfacecolor="white",
            label="held out, selected")
    for name in ("kl", "kl_selected"):
        kl.vlines(curves.best_step, *fit.interval(layer, name), color=style.REFERENCE, linewidth=2.5,
                  alpha=0.5)
    kl.set_ylim(bottom=0)
    kl.set_ylabel("KL, nats")
    for place, (name, label) in enumerate(RECALLS.items(), 1):
        recall.plot(curves.step, curves.held_out[name], label=label, markersize=3.5,
                    **colours[place])
        recall.vlines(curves.best_step, *fit.interval(layer, name), color=colours[place]["color"],
                      linewidth=2.5, alpha=0.5)
    recall.plot(curves.step, curves.held_out["oracle_mass"], label="oracle mass",
                color=style.REFERENCE, linestyle="--")
    recall.set_ylabel("held-out queries")
    recall.set_xlabel("steps")
    recall.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes, title in ((kl, f"(a) layer {layer}: KL loss"), (recall, "(b) recall and mass kept")):
        if 0 < switch < steps:
            axes.axvline(switch, color=style.GUIDE, linestyle=":", linewidth=1.2)
        style.title_and_legend(axes, title, ncols=2)
    return figure, _table(curves)


def _table(curves) -> Table:
    rows = [("train_kl", step, value) for step, value in enumerate(curves.train_kl.tolist())]
    for name, values in curves.held_out.items():
        rows += [(f"held_out_{name}", *point)
                 for point in zip(curves.step.tolist(), values.tolist())]
    return Table.from_rows(("curve", "step", "value"), rows)
