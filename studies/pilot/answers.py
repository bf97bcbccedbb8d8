# SPDX-License-Identifier: MIT
"""Pictures of Pilot II: what its registered claims rest on. At most six lines in a panel, each with a
colour of its own; bands and bars are 90 % intervals by the pooled standard deviation."""

from __future__ import annotations

import math

import numpy as np

from msalab.plots import style
from msalab.table import Table

from . import figures
from .claims import AGREE, DISAGREE, NOT_RUN, UNDECIDED, Check, margin_of
from .registered import (ATTACHED, CLAIMS, FORKED, LEVEL, Found, compare, failed, judge,
                               pooled)
from .runs import Records, Run

COLOUR_OF = {AGREE: "tab:green", DISAGREE: "tab:red", UNDECIDED: style.GUIDE}
OTHER_TEXT = "training_loss of the last tenth"  # beside bits per byte: the text that was trained on
FORKED_PANELS = (("msa", "window", "value-head"),
                 ("msa", "blocks-32", "blocks-128", "forced-first", "forced-local", "forced-both"))
FROM_STEP_0 = {"entropy_dense": "entropy dense, nats", "entropy_index": "entropy index, nats",
               "first_block_rate": "block 0 rate", "sink_mass_dense": "mass on token 0"}
MARGIN_TICKS = (-30, -5, -1, 0, 1, 5, 30)
EARLY_ARMS = ("full", "msa", "no-warmup", "window")


def _looks(arms) -> dict[str, dict]:
    return {arm: {**style.series_style(place), "linewidth": 1.4}
            for place, arm in enumerate(dict.fromkeys(arms))}


def _in_margins(found: Found) -> list[float]:
    """Mean and interval, in margins."""
    return [value / found.margin for value in (found.mean, found.low, found.high)]


def _of_check(one: Found, verdict: str) -> str:
    """What a check says by itself; it disagrees only where its claim does."""
    if verdict == NOT_RUN:
        return UNDECIDED
    return DISAGREE if verdict == DISAGREE and one.p <= LEVEL else one.verdict


def _rows_of_forest(records: Records, before: Records):
    """(claim's words where it begins, check, found, verdict of the claim) of what has differences."""
    for claim in CLAIMS:
        found, verdict = judge(records, claim, before)
        shown = [one for one in found if not math.isnan(one.low) and one.margin > 0]
        for number, one in enumerate(shown):
            yield claim.says if number == 0 else "", claim, one, verdict


@style.styled
def forest(records: Records, before: Records):
    """(figure, table): the difference of every check, in its margins; hollow, where the check is of
    bits per byte: of the training loss at the end, the same pair on the text that was trained on."""
    shown = list(_rows_of_forest(records, before))
    figure = style.new_figure(0.9 + 0.27 * max(1, len(shown)))
    axes, rows, labels = figure.subplots(), [], []
    for place, (says, claim, one, verdict) in enumerate(shown):
        colour = COLOUR_OF[_of_check(one, verdict)]
        pair = one.check.arm if one.check.other else f"{one.check.arm} − {one.check.against}"
        labels.append(f"{pair}: {one.check.name.replace('_', ' ')}, {one.check.expected}")
        mean, low, high = _in_margins(one)
        axes.plot([low, high], [place, place], color=colour, linewidth=2)
        axes.plot(mean, place, "o", color=colour)
        rows.append((claim.says, pair, one.check.name, one.check.expected, one.mean, one.low,
                     one.high, one.margin, verdict))
        if one.check.measure == "bits_per_byte" and claim.block != "none":
            check = Check(one.check.arm, one.check.against, OTHER_TEXT, one.check.expected)
            other = compare(records, claim.block, check)
            if other.margin > 0:
                axes.plot(other.mean / other.margin, place + 0.25, "o", color=colour,
                          markerfacecolor="none", markersize=4)
                rows.append((claim.says, pair, OTHER_TEXT, "", other.mean, other.low, other.high,
                             other.margin, ""))
        if says:
            axes.axhline(place - 0.5, color="0.9", linewidth=0.8)
    for at, look in ((-1, ":"), (0, "-"), (1, ":")):
        axes.axvline(at, color=style.REFERENCE, linewidth=0.8, linestyle=look)
    axes.set_xscale("symlog", linthresh=2)
    axes.set_xticks(MARGIN_TICKS, [f"{tick:g}" for tick in MARGIN_TICKS])
    axes.set_yticks(range(len(labels)), labels, fontsize=7)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.grid(False)
    axes.set_xlabel("difference, in margins")
    for word, colour in COLOUR_OF.items():
        axes.plot([], [], "o", color=colour, label=word)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)
    columns = ("claim", "pair", "measure", "expected", "mean", "low", "high", "margin", "verdict")
    return figure, Table.from_rows(columns, rows)


def _bands(axes, records: Records, arm: str, steps, look: dict):
    """The mean difference to full attention at every step with its interval; rows of a table."""
    rows = []
    for step in steps:
        found = compare(records, "A", Check(arm, "full", f"bits_per_byte at step {step}", "near"))
        rows.append((arm, step, found.mean, found.low, found.high))
    if rows:
        _, places, means, lows, highs = zip(*rows)
        axes.plot(places, means, label=arm, **look)
        axes.fill_between(places, lows, highs, color=look["color"], alpha=0.15, linewidth=0)
    return rows


def _steps(run: Run) -> list[int]:
    return [int(step) for step in run.curves["bits_per_byte", ""][0]]


def _first_run(records: Records, arm: str) -> Run:
    return next(run for run in records[arm].values() if not run.diverged)


@style.styled
def difference_to_full(records: Records, since: int = 800):
    """(figure, table): bits per byte above full attention at every evaluation from a step on."""
    figure = style.new_figure(5.2)
    run, rows = _first_run(records, "full"), []
    steps = [step for step in _steps(run) if step >= since]
    for axes, arms in zip(figure.subplots(2, 1, sharex=True), FORKED_PANELS):
        looks = _looks(arms)
        for arm in arms:
            if arm in records:
                rows += _bands(axes, records, arm, steps, looks[arm])
        margin = margin_of(records, Check("msa", "full", "bits_per_byte", "near"))
        axes.axhspan(-margin, margin, color="0.93", zorder=0)
        axes.axhline(0, color=style.REFERENCE, linewidth=0.8)
        axes.set_ylabel("bits per byte − full")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, ncols=2)
    axes.set_xlabel("step")
    return figure, Table.from_rows(("arm", "step", "mean", "low", "high"), rows)


@style.styled
def spread_over_steps(records: Records):
    """(figure, table): standard deviation over seeds at every evaluation: of the level of msa, and of
    the differences to it, pooled over the forked arms."""
    figure, rows = style.new_figure(3.0), []
    axes = figure.subplots()
    runs = [run for run in records["msa"].values() if not run.diverged]
    for step in _steps(runs[0]):
        measure = f"bits_per_byte at step {step}"
        levels = [run.values[measure] for run in runs]
        rows.append((step, float(np.std(levels, ddof=1)) if len(levels) > 1 else math.nan,
                     pooled(records, "A", Check(FORKED[0], "msa", measure, "near"))[0]))
    steps, levels, differences = zip(*rows)
    for name, values, look in (("level", levels, style.series_style(0)),
                               ("difference to msa", differences, style.series_style(1))):
        axes.plot(steps, values, label=name, **look)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("SD over seeds, bits per byte")
    axes.legend()
    return figure, Table.from_rows(("step", "level", "difference"), rows)


@style.styled
def bits_by_kind(records: Records):
    """(figure, table): bits per byte above full attention on each kind of held-out text."""
    kinds = [name.removeprefix("bits_per_byte of ") for name in _first_run(records, "full").values
             if name.startswith("bits_per_byte of ")]
    figure, rows = style.new_figure(3.4), []
    axes = figure.subplots()
    arms = [arm for arm in ("msa", *FORKED) if arm in records and arm != "window"][:6]
    looks = _looks(arms)
    for place, arm in enumerate(arms):
        for at, kind in enumerate(kinds):
            found = compare(records, "A", Check(arm, "full", f"bits_per_byte of {kind}", "near"))
            x = at + 0.12 * (place - (len(arms) - 1) / 2)
            axes.plot([x, x], [found.low, found.high], color=looks[arm]["color"], linewidth=1.2)
            axes.plot(x, found.mean, color=looks[arm]["color"], marker=looks[arm]["marker"],
                      linestyle="", label=arm if at == 0 else None)
            rows.append((arm, kind, found.mean, found.low, found.high))
    axes.axhline(0, color=style.REFERENCE, linewidth=0.8)
    axes.set_xticks(range(len(kinds)), kinds)
    axes.set_ylabel("bits per byte − full")
    axes.legend(fontsize=8, ncols=3)
    return figure, Table.from_rows(("arm", "kind", "mean", "low", "high"), rows)


@style.styled
def bits_by_weight(records: Records):
    """(figure, table): bits per byte against the weight of the KL loss, attached and detached, with
    and without clipping, of block D. A run that failed stands at the upper edge as a cross."""
    figure, rows = style.new_figure(3.4), []
    axes = figure.subplots()
    lines = {"attached": ATTACHED, "detached": ("detached-w10",)}
    bits = []
    for place, (name, arms) in enumerate(lines.items()):
        for ending, look in (("", "-"), ("-unclipped", ":")):
            points = []
            for arm in arms:
                for seed, run in records.get(arm + ending, {}).items():
                    weight = float(arm.split("-w")[1])
                    value = math.nan if run.diverged else run.values["bits_per_byte"]
                    rows.append((name + ending, weight, seed, value, failed(run)))
                    points.append((weight, math.nan if failed(run) else value, failed(run)))
            bits += [value for _, value, _ in points]
            weights = sorted({weight for weight, *_ in points})
            means = [np.mean([value for at, value, _ in points if at == weight])
                     for weight in weights]
            style_of = {**style.series_style(2 * place + (ending != "")), "linestyle": look}
            if points:
                axes.plot(weights, means, label=(name + ending).replace("-", ", "), **style_of)
                lost = [weight for weight, _, fails in points if fails]
                axes.plot(lost, [0.97] * len(lost), "x", color=style_of["color"],
                          transform=axes.get_xaxis_transform())
    axes.set_xscale("log")
    weights = sorted({row[1] for row in rows})
    axes.set_xticks(weights, [f"{weight:g}" for weight in weights])
    axes.minorticks_off()
    axes.set_xlabel("weight of the KL loss")
    axes.set_ylabel("bits per byte, held out")
    if bits:
        axes.legend(fontsize=8)
    return figure, Table.from_rows(("line", "weight", "seed", "bits_per_byte", "failed"), rows)


@style.styled
def from_step_0(records: Records):
    """(figure, table): entropies, how often block 0 is chosen and the mass on token 0, from the first
    step on; mean over layers and seeds. Steps on a logarithmic axis, from 1 on, so that the first ones
    are seen."""
    arms = [arm for arm in EARLY_ARMS if arm in records]
    figure, rows, looks = style.new_figure(6.4), [], _looks(arms)
    for axes, (name, label) in zip(figure.subplots(len(FROM_STEP_0), 1, sharex=True),
                                   FROM_STEP_0.items()):
        for arm in arms:
            runs = [run for run in records[arm].values() if run.parts(name)]
            curves = [(run.curves[name, run.parts(name)[0]][0],
                       np.mean([run.curves[name, part][1] for part in run.parts(name)], axis=0))
                      for run in runs]
            curves = [curve for curve in curves if np.array_equal(curve[0], curves[0][0])]
            if not curves:
                continue
            steps, mean = curves[0][0], np.mean([values for _, values in curves], axis=0)
            axes.plot(np.maximum(steps, 1), mean, label=arm, color=looks[arm]["color"])
            rows += [(name, arm, int(step), value) for step, value in zip(steps, mean)]
        axes.set_title(label, loc="left")
        axes.set_xscale("log")
    axes.set_xlabel("step")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure, Table.from_rows(("measure", "arm", "step", "value"), rows)


def pictures(records: Records, before: Records):
    """Name and (figure, table) of what the records have."""
    yield "pilot_forest", forest(records, before)
    if "full" in records and "msa" in records:
        yield "pilot_difference", difference_to_full(records)
        yield "pilot_kinds", bits_by_kind(records)
    if "msa" in records:
        yield "pilot_spread", spread_over_steps(records)
        yield "pilot_first_steps", from_step_0(records)
    if any(arm in records for arm in ATTACHED):
        yield "pilot_weights", bits_by_weight(records)
    for runs in (records, before):
        if figures.with_sink(runs):
            yield "pilot_sink_by_head", figures.sink_by_head(runs)
            break
