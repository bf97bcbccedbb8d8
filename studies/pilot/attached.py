# SPDX-License-Identifier: MIT
"""Block E of Pilot II: is a small KL weight that is not detached a gain? studies/pilot/README.md has the rule,
which was registered before the block's first run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .claims import NOT_RUN, UNDECIDED, _signed, student_inside, student_t
from .registered import LEVEL, failed
from .runs import Records, Run, emergence_step, require_comparable

# E1: the arms of each kind by rate, in thousandths.
RATES = {"full": {"0.5": "full-lr0_5", "1": "full-lr1", "2": "full-lr2"},
         "msa": {"0.5": "msa-lr0_5", "1": "msa", "2": "msa-lr2"},
         "attached": {"0.5": "attached-w0_1-lr0_5", "1": "attached-w0_1-lr1",
                      "2": "attached-w0_1-lr2"}}
RATE_SEEDS, SEEDS = range(11, 14), range(14, 20)
CONTROLS = {"control-dense": "a dense Main Branch", "control-teacher": "a teacher of another sequence",
            "control-frozen": "frozen random index weights",
            "control-until-400": "attached in the first 400 steps alone",
            "control-from-400": "attached after 400 steps alone"}
SOONER, NOT_CONFIRMED = "emerges sooner", "not confirmed"


@dataclass(frozen=True)
class Gain:
    """Bits per byte of the attached arm minus those of another arm, over seeds."""
    against: str
    aligned: bool  # by the step at which copying emerged
    seeds: int
    mean: float
    low: float  # of the 90 % interval
    high: float
    p: float  # one-sided: of a mean as low where the truth is 0


def _bits(run: Run, step: int) -> float:
    return run.values.get(f"bits_per_byte at step {step}", math.nan)


def _last(run: Run) -> int:
    return int(run.curves["bits_per_byte", ""][0][-1])


def aligned_difference(arm: Run, against: Run) -> float:
    """At the last evaluations that are equally many steps behind the emergence of copying; NaN where it
    has not emerged."""
    begins = emergence_step(arm), emergence_step(against)
    if any(map(math.isnan, begins)):
        return math.nan
    last = min(_last(arm) - begins[0], _last(against) - begins[1])
    return _bits(arm, int(begins[0] + last)) - _bits(against, int(begins[1] + last))


def best_rates(records: Records) -> dict[str, str]:
    """The arm of each kind with the lowest mean bits per byte over the seeds of E1, for the kinds whose
    runs have all ended; a rate with a run that failed is not chosen."""
    best = {}
    for kind, arms in RATES.items():
        runs = {arm: [records.get(arm, {}).get(seed) for seed in RATE_SEEDS]
                for arm in arms.values()}
        if any(run is None for of_arm in runs.values() for run in of_arm):
            continue
        means = {arm: math.inf if any(map(failed, of_arm)) else
                 float(np.mean([run.values["bits_per_byte"] for run in of_arm]))
                 for arm, of_arm in runs.items()}
        best[kind] = min(means, key=means.get)
    return best


def _gain(records: Records, arm: str, against: str, aligned: bool) -> tuple[str, bool, list[float]]:
    ours, theirs = records.get(arm, {}), records.get(against, {})
    seeds = [seed for seed in SEEDS if seed in ours and seed in theirs
             and not failed(ours[seed]) and not failed(theirs[seed])]
    for seed in seeds:
        require_comparable(ours[seed], theirs[seed])
    differences = [aligned_difference(ours[seed], theirs[seed]) if aligned else
                   ours[seed].values["bits_per_byte"] - theirs[seed].values["bits_per_byte"]
                   for seed in seeds]
    return against, aligned, [value for value in differences if not math.isnan(value)]


def gains(records: Records) -> list[Gain]:
    """Against full and msa, the same aligned, and against each control. The standard deviation is pooled
    over the differences that are aligned, and over those that are not."""
    best = best_rates(records)
    if len(best) < len(RATES):
        return []
    rows = [_gain(records, best["attached"], best[kind], aligned)
            for aligned in (False, True) for kind in ("full", "msa")]
    rows += [_gain(records, best["attached"], control, False) for control in CONTROLS]
    found = []
    for against, aligned, values in rows:
        family = [own for _, alike, own in rows if alike == aligned and len(own) > 1]
        freedom = sum(len(own) - 1 for own in family)
        mean = float(np.mean(values)) if values else math.nan
        if len(values) < 2 or not freedom:
            found.append(Gain(against, aligned, len(values), mean, math.nan, math.nan, 1.0))
            continue
        spread = math.sqrt(sum(np.var(own, ddof=1) * (len(own) - 1) for own in family) / freedom)
        error = spread / math.sqrt(len(values))
        half = student_t(freedom, 1 - 2 * LEVEL) * error
        inside = min(1.0, student_inside(abs(mean) / error, freedom)) if error > 0 else 1.0
        found.append(Gain(against, aligned, len(values), mean, mean - half, mean + half,
                          (1 - inside) / 2 if mean < 0 else (1 + inside) / 2))
    return found


def _lower_by_holm(rows: list[Gain]) -> bool:
    """All of them at LEVEL: Holm's smallest p decides at LEVEL / n, and so on."""
    ordered = sorted(row.p for row in rows)
    return all(p <= LEVEL / (len(ordered) - place) for place, p in enumerate(ordered))


def verdict(found: list[Gain]) -> str:
    """The gain is not accepted without the control whose entropy penalty has the gradient's norm: it has
    no kernel."""
    if not found or any(row.seeds < len(SEEDS) - 1 for row in found if not row.aligned):
        return NOT_RUN
    whole = [row for row in found if row.against not in CONTROLS and not row.aligned]
    controls = [row for row in found if row.against in CONTROLS]
    aligned = [row for row in found if row.aligned]
    if not all(row.high < 0 for row in whole) or not _lower_by_holm(controls):
        return NOT_CONFIRMED
    return UNDECIDED if all(row.high < 0 for row in aligned) else SOONER


def rates_markdown(records: Records, _before: Records) -> str:
    """E1: mean bits per byte by rate, and which is chosen."""
    best, rates = best_rates(records), tuple(RATES["full"])
    lines = ["| bits per byte at a rate of | " + " | ".join(f"{rate}e-3" for rate in rates) +
             " | chosen |", "|---|---|---|---|---|"]
    for kind, arms in RATES.items():
        cells = []
        for arm in arms.values():
            runs = [run for seed, run in records.get(arm, {}).items() if seed in RATE_SEEDS]
            mean = np.mean([run.values["bits_per_byte"] for run in runs]) if runs else math.nan
            short = "" if len(runs) == len(RATE_SEEDS) else f" ({len(runs)} of {len(RATE_SEEDS)})"
            cells.append(f"{mean:.4f}{short}")
        chosen = next((f"{rate}e-3" for rate, arm in arms.items() if arm == best.get(kind)),
                      "waits for runs")
        lines.append(f"| {kind} | " + " | ".join(cells) + f" | {chosen} |")
    return "\n".join(lines) + "\n"


def attached_markdown(records: Records, _before: Records) -> str:
    """E2: the differences, and the verdict."""
    found = gains(records)
    lines = ["| attached, weight 0.1, minus | bits per byte | 90 % interval | p | seeds |",
             "|---|---|---|---|---|"]
    for row in found:
        name = CONTROLS.get(row.against, row.against) + (
            ", aligned by the emergence of copying" if row.aligned else "")
        interval = "none" if math.isnan(row.low) else f"{_signed(row.low)} to {_signed(row.high)}"
        lines.append(f"| {name} | {_signed(row.mean)} | {interval} | {row.p:.4f} | "
                     f"{row.seeds} of {len(SEEDS)} |")
    return "\n".join([*lines, "", f"The attached gain: **{verdict(found)}**."]) + "\n"


TABLES = {"rates": rates_markdown, "attached": attached_markdown}
