# SPDX-License-Identifier: MIT
"""What MSA costs a model itself: the summary.json of `msalab evaluate`."""

from __future__ import annotations

import numpy as np

from ..table import Table
from . import style
from .cost import read_json

FORMAT = "msalab-evaluation"
HEIGHT = 2.6  # inches of a panel
NONE = {"mean": None, "low": None, "high": None}


def read_evaluation(path) -> dict:
    return read_json(path, FORMAT)


def _value(number) -> float:
    return np.nan if number is None else float(number)


def _settings(summary) -> list[dict]:
    """With the name of the line that they lie on: a selector, and how many first blocks it keeps."""
    return [config | {"line": _line(config)} for config in summary["configs"] if "selector" in config]


def _line(config) -> str:
    first = config.get("forced_first")
    return f"{config['selector']},first={first}" if first else config["selector"]


def _lines(settings) -> list[str]:
    return list(dict.fromkeys(config["line"] for config in settings))


def _look(line: str, lines) -> dict:
    """Of a selector; with first blocks forced beside the same without, dots and their number as marker."""
    name, _, forced = line.partition(",first=")
    look = style.selector_style(name)
    if forced and name in lines:
        look |= {"linestyle": ":", "marker": f"${forced}$", "markersize": 7,
                 "markerfacecolor": look["color"]}
    return look


def _legend(figure, axes):
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _draw_with_interval(axes, x, excess, look, label):
    mean, low, high = (np.asarray([_value(one[name]) for one in excess])
                       for name in ("mean", "low", "high"))
    axes.plot(x, mean, label=label, **look)
    _draw_interval(axes, x, mean, low, high, look["color"])


def _draw_interval(axes, x, mean, low, high, color):
    """A band between points, and a bar at each of them, which is all there is of a single one."""
    axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    axes.errorbar(x, mean, [np.maximum(mean - low, 0), np.maximum(high - mean, 0)], linestyle="", color=color,
                  linewidth=1, capsize=2)


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
    rows = [(c["line"], c["budget"], c["bits_per_token"],
             *(_value(c["excess"][name]) for name in NONE), _value(c["excess_beyond"]["mean"]))
            for c in settings]
    figure = style.new_figure(3.6)
    axes = figure.subplots()
    names = _lines(settings)
    for name in names:
        of_name = [c for c in settings if c["line"] == name]
        _draw_with_interval(axes, [c["budget"] for c in of_name], [c["excess"] for c in of_name],
                            _look(name, names), name)
    axes.axhline(0, color=style.DENSE, linewidth=1)
    _count_axis(axes, [c["budget"] for c in settings], "budget, tokens per query")
    axes.set_ylabel("bits per token above dense")
    _legend(figure, axes)
    return figure, Table.from_rows(("selector", "budget", "bits_per_token", "excess", "low",
                                    "high", "beyond"), rows)


def _panels(summary, height=HEIGHT):
    """One panel for each budget: (figure, [(budget, axes)])."""
    budgets = sorted({c["budget"] for c in _settings(summary)})
    figure = style.new_figure(0.6 + height * len(budgets))
    panels = np.atleast_1d(figure.subplots(len(budgets), 1, sharex=True, sharey=True))
    for budget, axes in zip(budgets, panels):
        axes.set_title(f"budget {budget} tokens")
    return figure, list(zip(budgets, panels))


@style.styled
def loss_by_position(summary):
    """(figure, table): bits per token above dense attention by position in the sequence."""
    figure, panels = _panels(summary)
    names, rows = _lines(_settings(summary)), []
    of = {c["config"]: c for c in _settings(summary)}
    for budget, axes in panels:
        for name in names:
            here = [row for row in summary["by_position"]
                    if (c := of.get(row["config"])) and (c["line"], c["budget"])
                    == (name, budget)]
            if not here:
                continue
            _draw_with_interval(axes, [row["end"] for row in here],
                                [row["excess"] for row in here], _look(name, names), name)
            rows += [(name, budget, row["first"], row["end"], row["bits_per_token"],
                      *(_value(row["excess"][part]) for part in NONE)) for row in here]
        axes.axhline(0, color=style.DENSE, linewidth=1)
        axes.set_ylabel("bits per token\nabove dense")
    _count_axis(panels[-1][1], [row["end"] for row in summary["by_position"]], "position, up to")
    _legend(figure, panels[0][1])
    return figure, Table.from_rows(("selector", "budget", "first", "end", "bits_per_token",
                                    "excess", "low", "high"), rows)


@style.styled
def error_by_layer(summary):
    """(figure, table): relative error of the hidden states behind each layer."""
    figure, panels = _panels(summary)
    settings = _settings(summary)
    names, rows = _lines(settings), []
    for budget, axes in panels:
        for config in (c for c in settings if c["budget"] == budget):
            errors = [_value(error) for error in config["layer_error"]]
            axes.plot(summary["layers"], errors, label=config["line"],
                      **_look(config["line"], names))
            rows += [(config["line"], budget, layer, error)
                     for layer, error in zip(summary["layers"], errors)]
        axes.set_ylabel("|h - h_dense| / |h_dense|,\nmean over tokens")
        axes.set_ylim(bottom=0)
    style.layer_axis(panels[-1][1], summary["layers"], "behind layer")
    _legend(figure, panels[0][1])
    return figure, Table.from_rows(("selector", "budget", "layer", "error"), rows)


@style.styled
def sensitivity(summary):
    """(figure, table): what one layer dense, or one alone sparse, gains or loses; a panel for each
    setting."""
    found: dict[str, list] = {}
    for row in summary["sensitivity"]:
        found.setdefault(row["config"], []).append(row)
    figure = style.new_figure(HEIGHT * len(found))
    panels = np.atleast_1d(figure.subplots(len(found), 1, sharex=True))
    rows = []
    for axes, (config, of_config) in zip(panels, found.items()):
        of_config = sorted(of_config, key=lambda row: row["layer"])
        mean, low, high = (np.asarray([_value(row["bits"][name]) for row in of_config])
                           for name in ("mean", "low", "high"))
        layers = [row["layer"] for row in of_config]
        axes.bar(layers, mean, color=style.PAIR[0])
        axes.errorbar(layers, mean, [np.maximum(mean - low, 0), np.maximum(high - mean, 0)],
                      linestyle="", color=style.GUIDE, linewidth=1, capsize=2)
        axes.axhline(0, color=style.DENSE, linewidth=1)
        axes.set_title(config)
        one = of_config[0]["one"]
        axes.set_ylabel("bits per token\n" + ("gained" if one == "dense" else "lost"))
        rows += [(config, one, *values) for values in zip(layers, mean, low, high)]
    style.layer_axis(panels[-1], [row["layer"] for row in summary["sensitivity"]],
                     f"layer, {rows[0][1]} {'beside the sparse others' if rows[0][1] == 'dense' else 'alone'}")
    return figure, Table.from_rows(("config", "one", "layer", "bits", "low", "high"), rows)


@style.styled
def retrieval(summary):
    """(figure, table): right answers against the budget with their intervals, a panel for each task
    and length; dense attention's share is the grey line."""
    of = {c["config"]: c for c in _settings(summary)}
    cells: dict[tuple, dict] = {}
    for row in summary["retrieval_total"]:
        cells.setdefault((row["task"], row["length"]), {})[row["config"]] = row
    figure = style.new_figure(0.6 + HEIGHT * len(cells))
    panels = np.atleast_1d(figure.subplots(len(cells), 1, sharex=True, sharey=True))
    names, rows = _lines(_settings(summary)), []
    for axes, ((task, length), found) in zip(panels, cells.items()):
        for name in names:
            points = sorted((of[config]["budget"], row["exact_match"],
                             *map(_value, row["exact_match_interval"]))
                            for config, row in found.items()
                            if config in of and of[config]["line"] == name)
            budgets, share, low, high = map(np.asarray, zip(*points))
            look = _look(name, names)
            axes.plot(budgets, share, label=name, **look)
            _draw_interval(axes, budgets, share, low, high, look["color"])
        dense = found["dense"]
        axes.axhline(dense["exact_match"], color=style.DENSE, linewidth=1, label="dense")
        axes.set_title(f"{task}, {length} tokens, {dense['exercises']} exercises")
        axes.set_ylabel("right answers")
        axes.set_ylim(-0.03, 1.03)
        rows += [(task, length, config, of.get(config, {}).get("budget", 0), row["exact_match"],
                  *map(_value, row["exact_match_interval"]), row["exercises"], row["answers"])
                 for config, row in found.items()]
    _count_axis(panels[-1], [c["budget"] for c in _settings(summary)], "budget, tokens per query")
    _legend(figure, panels[0])
    return figure, Table.from_rows(("task", "length", "config", "budget", "exact_match", "low", "high",
                                    "exercises", "answers"), rows)


def numbers(summary) -> Table:
    """A row for each setting."""
    rows = [(c["config"], *(_value(c.get(name)) for name in
                            ("bits_per_token", "bits_per_byte", "perplexity")),
             *(_value(c.get("excess", NONE)[name]) for name in NONE),
             _value(c.get("excess_beyond", NONE)["mean"])) for c in summary["configs"]]
    return Table.from_rows(("config", "bits_per_token", "bits_per_byte", "perplexity", "excess",
                            "low", "high", "beyond"), rows)


def pictures(summary):
    """Name and drawing function of what the summary has."""
    if summary["by_position"]:
        yield "loss_by_budget", loss_by_budget
        yield "loss_by_position", loss_by_position
        yield "error_by_layer", error_by_layer
    if summary["sensitivity"]:
        yield "sensitivity", sensitivity
    if summary["retrieval"]:
        yield "retrieval", retrieval


def draw_all(summary, out) -> None:
    for name, draw in pictures(summary):
        style.save(*draw(summary), out, name)
