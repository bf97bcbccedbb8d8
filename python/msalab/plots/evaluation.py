# SPDX-License-Identifier: MIT
"""What MSA costs a model itself: the summary.json of `msalab evaluate`."""

from __future__ import annotations

import numpy as np

from . import style
from .cost import read_json
from .table import Table

FORMAT = "msalab-evaluation"
HEIGHT = 2.6  # inches of a panel
NONE = {"mean": None, "low": None, "high": None}


def read_evaluation(path) -> dict:
    return read_json(path, FORMAT)


def _value(number) -> float:
    return np.nan if number is None else float(number)


def _settings(summary) -> list[dict]:
    return [config for config in summary["configs"] if "selector" in config]


def _selectors(settings) -> list[str]:
    return list(dict.fromkeys(config["selector"] for config in settings))


def _draw_with_interval(axes, x, excess, look, label):
    mean, low, high = (np.asarray([_value(one[name]) for one in excess])
                       for name in ("mean", "low", "high"))
    axes.plot(x, mean, label=label, **look)
    axes.fill_between(x, low, high, color=look["color"], alpha=0.15, linewidth=0)


def _count_axis(axes, counts, label: str):
    """A logarithmic x axis with the counts themselves as its ticks."""
    ticks = sorted(set(counts))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlabel(label)


@style.styled
def loss_by_budget(summary):
    """(figure, table): bits per token above dense attention against the budget."""
    settings = _settings(summary)
    rows = [(c["selector"], c["budget"], c["bits_per_token"], *(_value(c["excess"][name])
                                                               for name in NONE))
            for c in settings]
    figure = style.new_figure(3.2)
    axes = figure.subplots()
    names = _selectors(settings)
    for name in names:
        of_name = [c for c in settings if c["selector"] == name]
        _draw_with_interval(axes, [c["budget"] for c in of_name], [c["excess"] for c in of_name],
                            style.selector_style(name, names), name)
    axes.axhline(0, color=style.DENSE, linewidth=1)
    _count_axis(axes, [c["budget"] for c in settings], "budget, tokens per query")
    axes.set_ylabel("bits per token above dense")
    axes.legend()
    return figure, Table.from_rows(("selector", "budget", "bits_per_token", "excess", "low",
                                    "high"), rows)


def _panels(summary, height=HEIGHT):
    """One panel for each budget: (figure, [(budget, axes)])."""
    budgets = sorted({c["budget"] for c in _settings(summary)})
    figure = style.new_figure(height * len(budgets))
    panels = np.atleast_1d(figure.subplots(len(budgets), 1, sharex=True, sharey=True))
    for budget, axes in zip(budgets, panels):
        axes.set_title(f"budget {budget} tokens")
    return figure, list(zip(budgets, panels))


@style.styled
def loss_by_position(summary):
    """(figure, table): bits per token above dense attention by position in the sequence."""
    figure, panels = _panels(summary)
    names, rows = _selectors(_settings(summary)), []
    of = {c["config"]: c for c in _settings(summary)}
    for budget, axes in panels:
        for name in names:
            here = [row for row in summary["by_position"]
                    if (c := of.get(row["config"])) and (c["selector"], c["budget"])
                    == (name, budget)]
            _draw_with_interval(axes, [row["end"] for row in here],
                                [row["excess"] for row in here],
                                style.selector_style(name, names), name)
            rows += [(name, budget, row["first"], row["end"], row["bits_per_token"],
                      *(_value(row["excess"][part]) for part in NONE)) for row in here]
        axes.axhline(0, color=style.DENSE, linewidth=1)
        axes.set_ylabel("bits per token\nabove dense")
    _count_axis(panels[-1][1], [row["end"] for row in summary["by_position"]], "position, up to")
    panels[0][1].legend()
    return figure, Table.from_rows(("selector", "budget", "first", "end", "bits_per_token",
                                    "excess", "low", "high"), rows)


@style.styled
def error_by_layer(summary):
    """(figure, table): relative error of the hidden states behind each layer."""
    figure, panels = _panels(summary)
    settings = _settings(summary)
    names, rows = _selectors(settings), []
    for budget, axes in panels:
        for config in (c for c in settings if c["budget"] == budget):
            errors = [_value(error) for error in config["layer_error"]]
            axes.plot(summary["layers"], errors, label=config["selector"],
                      **style.selector_style(config["selector"], names))
            rows += [(config["selector"], budget, layer, error)
                     for layer, error in zip(summary["layers"], errors)]
        axes.set_ylabel("|h - h_dense| / |h_dense|")
        axes.set_ylim(bottom=0)
    panels[-1][1].set_xlabel("behind layer")
    panels[0][1].legend()
    return figure, Table.from_rows(("selector", "budget", "layer", "error"), rows)


@style.styled
def retrieval(summary):
    """(figure, table): right answers against the budget, a panel for each task and length; dense
    attention's share is the grey line."""
    of = {c["config"]: c for c in summary["configs"]}
    cells: dict[tuple, dict] = {}
    for row in summary["retrieval"]:
        sums = cells.setdefault((row["task"], row["length"]), {}).setdefault(row["config"], [0, 0])
        sums[0] += row["exact_match"] * row["answers"]
        sums[1] += row["answers"]
    figure = style.new_figure(HEIGHT * len(cells))
    panels = np.atleast_1d(figure.subplots(len(cells), 1, sharex=True, sharey=True))
    names, rows = _selectors(_settings(summary)), []
    for axes, ((task, length), found) in zip(panels, cells.items()):
        share = {config: right / count for config, (right, count) in found.items()}
        for name in names:
            points = sorted((of[config]["budget"], value) for config, value in share.items()
                            if of[config].get("selector") == name)
            axes.plot(*zip(*points), label=name, **style.selector_style(name, names))
        axes.axhline(share["dense"], color=style.DENSE, linewidth=1, label="dense")
        axes.set_title(f"{task}, {length} tokens")
        axes.set_ylabel("right answers")
        axes.set_ylim(-0.03, 1.03)
        rows += [(task, length, config, of[config].get("budget", 0), value, found[config][1])
                 for config, value in share.items()]
    _count_axis(panels[-1], [c["budget"] for c in _settings(summary)], "budget, tokens per query")
    panels[0].legend()
    return figure, Table.from_rows(("task", "length", "config", "budget", "exact_match",
                                    "answers"), rows)


def numbers(summary) -> Table:
    """A row for each setting."""
    rows = [(c["config"], *(_value(c.get(name)) for name in
                            ("bits_per_token", "bits_per_byte", "perplexity")),
             *(_value(c.get("excess", NONE)[name]) for name in NONE)) for c in summary["configs"]]
    return Table.from_rows(("config", "bits_per_token", "bits_per_byte", "perplexity", "excess",
                            "low", "high"), rows)


def pictures(summary):
    """Name and drawing function of what the summary has."""
    if summary["by_position"]:
        yield "loss_by_budget", loss_by_budget
        yield "loss_by_position", loss_by_position
        yield "error_by_layer", error_by_layer
    if summary["retrieval"]:
        yield "retrieval", retrieval


def draw_all(summary, out) -> None:
    for name, draw in pictures(summary):
        style.save(*draw(summary), out, name)
