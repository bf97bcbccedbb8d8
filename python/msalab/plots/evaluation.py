# SPDX-License-Identifier: MIT
"""What MSA costs a model itself: the answer of `msalab evaluate`."""

from __future__ import annotations

import numpy as np

from .. import results
from ..results import ENDS
from ..table import Table
from . import style

HEIGHT = 2.6  # inches of a panel
FIRST = "first="  # option of a line


def read_evaluation(path) -> results.Report:
    return results.open(path, "msalab evaluate")


def _settings(answer) -> list[dict]:
    """With their budget, and the name of the line that they lie on: a selector, how many first blocks it keeps, and in
    which element type."""
    return [config | {"line": _line(config), "budget": int(config["token_budget"])}
            for config in answer["configs"].records() if config["selector"]]


def _line(config) -> str:
    first, element = config["forced_first"], config.get("element")
    return config["selector"] + (f",{FIRST}{int(first)}" if first > 0 else "") + (f",{element}" if element else "")


def _estimate(row, key: str) -> tuple:
    """Value, low and high."""
    return tuple(row[key + end] for end in ENDS)


def _lines(settings) -> list[str]:
    return list(dict.fromkeys(config["line"] for config in settings))


def _look(line: str, lines) -> dict:
    """Of a selector; an element type is as an option of it; with first blocks forced beside the same without, dots and
    their number as marker."""
    name, *options = line.split(",")
    forced = "".join(option for option in options if option.startswith(FIRST))
    others = [option for option in options if option != forced]
    look = style.selector_style(":".join([name, *others]))
    if forced and ",".join([name, *others]) in lines:
        look |= {"linestyle": ":", "marker": f"${forced.removeprefix(FIRST)}$", "markersize": 7,
                 "markerfacecolor": look["color"]}
    return look


def _legend(figure, axes):
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)


def _draw_with_interval(axes, x, rows, look, label):
    mean, low, high = map(np.asarray, zip(*(_estimate(row, "excess") for row in rows)))
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
def loss_by_budget(answer):
    """(figure, table): bits per token above dense attention against the budget."""
    settings = _settings(answer)
    rows = [(c["line"], c["budget"], c["bits_of_text"], *_estimate(c, "excess"), c["excess_beyond"]) for c in settings]
    figure = style.new_figure(3.6)
    axes = figure.subplots()
    names = _lines(settings)
    for name in names:
        of_name = [c for c in settings if c["line"] == name]
        _draw_with_interval(axes, [c["budget"] for c in of_name], of_name,
                            _look(name, names), name)
    axes.axhline(0, color=style.DENSE, linewidth=1)
    _count_axis(axes, [c["budget"] for c in settings], "budget, tokens per query")
    axes.set_ylabel("bits per token above dense")
    _legend(figure, axes)
    return figure, Table.from_rows(("selector", "budget", "bits_per_token", "excess", "low",
                                    "high", "beyond"), rows)


def _panels(answer, height=HEIGHT):
    """One panel for each budget: (figure, [(budget, axes)])."""
    budgets = sorted({c["budget"] for c in _settings(answer)})
    figure = style.new_figure(0.6 + height * len(budgets))
    panels = np.atleast_1d(figure.subplots(len(budgets), 1, sharex=True, sharey=True))
    for budget, axes in zip(budgets, panels):
        axes.set_title(f"budget {budget} tokens")
    return figure, list(zip(budgets, panels))


@style.styled
def loss_by_position(answer):
    """(figure, table): bits per token above dense attention by position in the sequence."""
    figure, panels = _panels(answer)
    names, rows = _lines(_settings(answer)), []
    of, by_position = {c["config"]: c for c in _settings(answer)}, answer["by_position"].records()
    for budget, axes in panels:
        for name in names:
            here = [row for row in by_position
                    if (c := of.get(row["config"])) and (c["line"], c["budget"])
                    == (name, budget)]
            if not here:
                continue
            _draw_with_interval(axes, [row["end_position"] for row in here], here, _look(name, names), name)
            rows += [(name, budget, row["first_position"], row["end_position"], row["bits_of_text"],
                      *_estimate(row, "excess")) for row in here]
        axes.axhline(0, color=style.DENSE, linewidth=1)
        axes.set_ylabel("bits per token\nabove dense")
    _count_axis(panels[-1][1], [row["end_position"] for row in by_position], "position, up to")
    _legend(figure, panels[0][1])
    return figure, Table.from_rows(("selector", "budget", "first", "end", "bits_per_token",
                                    "excess", "low", "high"), rows)


@style.styled
def error_by_layer(answer):
    """(figure, table): relative error of the hidden states behind each layer."""
    figure, panels = _panels(answer)
    settings = _settings(answer)
    names, rows = _lines(settings), []
    for budget, axes in panels:
        for config in (c for c in settings if c["budget"] == budget):
            found = answer["layer_errors"].where(config=config["config"])
            axes.plot(found["layer"], found["layer_error"], label=config["line"],
                      **_look(config["line"], names))
            rows += [(config["line"], budget, *one) for one in found.select("layer", "layer_error").rows()]
        axes.set_ylabel("|h - h_dense| / |h_dense|,\nmean over tokens")
        axes.set_ylim(bottom=0)
    style.layer_axis(panels[-1][1], np.unique(answer["layer_errors"]["layer"]).tolist(), "behind layer")
    _legend(figure, panels[0][1])
    return figure, Table.from_rows(("selector", "budget", "layer", "error"), rows)


@style.styled
def sensitivity(answer):
    """(figure, table): what one layer dense, or one alone sparse, gains or loses; a panel for each
    setting."""
    found: dict[str, list] = {}
    for row in answer["sensitivity"].records():
        found.setdefault(row["config"], []).append(row)
    figure = style.new_figure(HEIGHT * len(found))
    panels = np.atleast_1d(figure.subplots(len(found), 1, sharex=True))
    rows = []
    for axes, (config, of_config) in zip(panels, found.items()):
        of_config = sorted(of_config, key=lambda row: row["layer"])
        mean, low, high = map(np.asarray, zip(*(_estimate(row, "layer_bits") for row in of_config)))
        layers = [row["layer"] for row in of_config]
        axes.bar(layers, mean, color=style.PAIR[0])
        axes.errorbar(layers, mean, [np.maximum(mean - low, 0), np.maximum(high - mean, 0)],
                      linestyle="", color=style.GUIDE, linewidth=1, capsize=2)
        axes.axhline(0, color=style.DENSE, linewidth=1)
        axes.set_title(config)
        one = of_config[0]["one"]
        axes.set_ylabel("bits per token\n" + ("gained" if one == "dense" else "lost"))
        rows += [(config, one, *values) for values in zip(layers, mean, low, high)]
    style.layer_axis(panels[-1], answer["sensitivity"]["layer"].tolist(),
                     f"layer, {rows[0][1]} {'beside the sparse others' if rows[0][1] == 'dense' else 'alone'}")
    return figure, Table.from_rows(("config", "one", "layer", "bits", "low", "high"), rows)


@style.styled
def retrieval(answer):
    """(figure, table): right answers against the budget with their intervals, a panel for each task
    and length; dense attention's share is the grey line."""
    of = {c["config"]: c for c in _settings(answer)}
    cells: dict[tuple, dict] = {}
    for row in answer["retrieval_total"].records():
        cells.setdefault((row["task"], row["exercise_tokens"]), {})[row["config"]] = row
    figure = style.new_figure(0.6 + HEIGHT * len(cells))
    panels = np.atleast_1d(figure.subplots(len(cells), 1, sharex=True, sharey=True))
    names, rows = _lines(_settings(answer)), []
    for axes, ((task, length), found) in zip(panels, cells.items()):
        for name in names:
            points = sorted((of[config]["budget"], *_estimate(row, "right_answers"))
                            for config, row in found.items()
                            if config in of and of[config]["line"] == name)
            budgets, share, low, high = map(np.asarray, zip(*points))
            look = _look(name, names)
            axes.plot(budgets, share, label=name, **look)
            _draw_interval(axes, budgets, share, low, high, look["color"])
        dense = found["dense"]
        axes.axhline(dense["right_answers"], color=style.DENSE, linewidth=1, label="dense")
        axes.set_title(f"{task}, {length} tokens, {dense['exercises']} exercises")
        axes.set_ylabel("right answers")
        axes.set_ylim(-0.03, 1.03)
        rows += [(task, length, config, of.get(config, {}).get("budget", 0),
                  *_estimate(row, "right_answers"), row["exercises"], row["answers"])
                 for config, row in found.items()]
    _count_axis(panels[-1], [c["budget"] for c in _settings(answer)], "budget, tokens per query")
    _legend(figure, panels[0])
    return figure, Table.from_rows(("task", "length", "config", "budget", "exact_match", "low", "high",
                                    "exercises", "answers"), rows)


def numbers(answer) -> Table:
    """A row for each setting."""
    rows = [(c["config"], c["bits_of_text"], c["bits_of_bytes"], c["perplexity"], *_estimate(c, "excess"),
             c["excess_beyond"]) for c in answer["configs"].records()]
    return Table.from_rows(("config", "bits_per_token", "bits_per_byte", "perplexity", "excess",
                            "low", "high", "beyond"), rows)


def pictures(answer):
    """Name and drawing function of what the answer has; of dense attention alone there is nothing to draw."""
    if not _settings(answer):
        return
    if len(answer["by_position"]):
        yield "loss_by_budget", loss_by_budget
        yield "loss_by_position", loss_by_position
        yield "error_by_layer", error_by_layer
    if len(answer["sensitivity"]):
        yield "sensitivity", sensitivity
    if len(answer["retrieval"]):
        yield "retrieval", retrieval


def draw_all(answer, out) -> None:
    for name, draw in pictures(answer):
        style.save(*draw(answer), out, name)
