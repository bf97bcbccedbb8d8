# SPDX-License-Identifier: MIT
"""Pilot II: the claims and rules that studies/pilot/README.md registered before its first run, in code."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from .claims import CLAIMS as EXPLORATORY
from .claims import (AGREE, DISAGREE, EXPECTED, NOT_RUN, PAST_COPYING, UNDECIDED, Check, _pairs,
                    _signed, differences, margin_of, student_inside, student_t)
from .runs import Records, emergence_step

LEVEL = 0.05  # of each one-sided test
# Of each block; "none": runs of the exploratory part, whose differences have the spread of family A.
SEEDS = {"A": range(11, 17), "A2": range(17, 29), "B": range(11, 15), "B2": range(15, 19), "C": range(11, 23),
         "D": range(11, 14), "D2": range(14, 18), "F": range(11, 14), "none": range(1, 4)}
FORKED = ("window", "blocks-32", "blocks-128", "forced-first", "forced-local", "forced-both",
          "value-head")
FAMILIES = {"A": (("msa", FORKED),),
            "B": (("msa-8k", ("blocks-32-8k", "blocks-128-8k", "forced-first-8k", "forced-both-8k")),),
            "B2": (("msa-then-8k", ("blocks-32-then-8k", "blocks-128-then-8k", "forced-first-then-8k",
                                    "forced-both-then-8k")),),
            "C": (("msa", ("no-warmup",)),)}
LOST = 1  # seeds that a check may lose by runs that failed
_CLOSE = {"bits_per_byte": "near", "training_loss of the last tenth": "near",
          "gradient_spike": "no higher"}
_FOLLOWS = _pairs(_CLOSE, ("msa", "full"))
_SAME = {"bits_per_byte": "near", "exact_match recall": "near"}


@dataclass(frozen=True)
class Claim:
    block: str
    says: str
    checks: tuple[Check, ...]
    needs: tuple[str, ...] = ()  # arms beside those of the checks
    reading: str = ""  # of the paper's claim, where that is not the verdict; of no weight in it


def _exploratory(key: str) -> tuple[Check, ...]:
    return next(claim.checks for claim in EXPLORATORY if claim.key == key)


GIVEN_UP = "given up after three runs: copying does not emerge in them; block B2 asks it again"
ATTACHED = ("attached-w1", "attached-w2", "attached-w3", "attached-w5", "attached-w10")
CLAIMS = (
    Claim("A", "MSA follows full attention", _FOLLOWS),
    Claim("A2", "MSA follows full attention, asked again", _FOLLOWS,
          reading="not blind: seeds 17 and 18 are seen in blocks C and E2"),
    Claim("F", "MSA follows full attention, 29M parameters",
          _pairs(_CLOSE, ("msa-large", "full-large"))),
    Claim("A", "dynamic selection beats the window",
          _pairs({"bits_per_byte": "higher", "exact_match recall": "lower"}, ("window", "msa"))),
    Claim("A", "also along training", (Check("window", "msa", PAST_COPYING, "higher"),),
          reading="agrees; the claim above, earlier in training"),
    Claim("A", "block size changes little",
          _pairs(_SAME, ("blocks-32", "msa"), ("blocks-128", "msa")),
          reading="at 4 blocks (2 of 128): disagrees; at the paper's 16 (block B2): agrees"),
    Claim("B", "block size changes little, where a query keeps 8 to 32",
          _pairs(_SAME, ("blocks-32-8k", "msa-8k"), ("blocks-128-8k", "msa-8k")), reading=GIVEN_UP),
    Claim("B2", "block size changes little, where a query keeps 8 to 32, asked again",
          _pairs(_SAME, ("blocks-32-then-8k", "msa-then-8k"), ("blocks-128-then-8k", "msa-then-8k"))),
    Claim("A", "forced blocks change little",
          _pairs(_SAME, ("forced-first", "msa"), ("forced-local", "msa"), ("forced-both", "msa")),
          reading="at 4 blocks: disagrees; at the paper's 16 (block B2): agrees"),
    Claim("B", "forced blocks change little, where a query keeps 16",
          _pairs(_SAME, ("forced-first-8k", "msa-8k"), ("forced-both-8k", "msa-8k")), reading=GIVEN_UP),
    Claim("B2", "forced blocks change little, where a query keeps 16, asked again",
          _pairs(_SAME, ("forced-first-then-8k", "msa-then-8k"), ("forced-both-then-8k", "msa-then-8k"))),
    Claim("A", "with a warm-up, a value head gains nothing",
          (Check("value-head", "msa", "bits_per_byte", "no lower"),
           Check("value-head", "msa", "exact_match recall", "no higher")),
          reading="agrees, from scratch; the paper's is continued pretraining"),
    Claim("A", "the first block is chosen without being forced; heads differ",
          (*_exploratory("emergence"),
           Check("msa", "msa", "first_block_rate", "higher", "chance given the neighbour")),
          reading="heads differ: agrees; the first block: cannot be tested in a model without a sink"),
    Claim("C", "warm-up helps",
          (Check("no-warmup", "msa", "bits_per_byte", "higher"),
           Check("no-warmup", "msa", "exact_match recall", "lower")),
          reading="without a value head: disagrees; with one in both arms, as the paper has it: undecided"),
    Claim("C", "both sources of the gradient are needed",
          (Check("lm-no-warmup", "both-no-warmup", "exact_match recall", "lower"),
           Check("no-warmup", "both-no-warmup", "bits_per_byte", "higher")),
          reading="the language-model loss alone does not do: agrees; "
                  "the KL loss alone does not: disagrees where detached, attached is not tested"),
    Claim("D", "without detaching, a large KL weight fails",
          (Check("attached-w10", "detached-w10", "failed", "higher"),)),
    Claim("D", "and a stable one regresses",
          (Check("attached", "detached-w10", "bits_per_byte", "higher"),), ATTACHED,
          reading="copying has not emerged"),
    Claim("D2", "and a stable one regresses, asked again",
          (Check("attached-w1-long", "detached-w10-long", "bits_per_byte", "higher"),),
          reading="late emergence, gap closing: no gradual regression"),
    Claim("none", "a learnable sink gains nothing", _exploratory("sink"),
          reading="agrees, with three exploratory seeds; by their own spread one check is undecided"),
)


@dataclass(frozen=True)
class Found:
    check: Check
    seeds: dict[int, float]  # differences
    missing: tuple[int, ...]
    mean: float
    low: float  # of the 90 % interval
    high: float
    margin: float
    verdict: str
    p: float  # of a disagreement

    @property
    def interval(self) -> str:
        return "none" if math.isnan(self.low) else f"{_signed(self.low)} to {_signed(self.high)}"


def of_block(records: Records, block: str) -> Records:
    """The runs of a block's seeds: the arms msa and full have those of other blocks, too."""
    seeds = {arm: {seed: run for seed, run in runs.items() if seed in SEEDS[block]}
             for arm, runs in records.items()}
    return {arm: runs for arm, runs in seeds.items() if runs}


def failed(run) -> bool:
    return run.diverged or bool(run.values["stalled"])


def _differences(records: Records, check: Check) -> dict[int, float]:
    """Within each seed; without those of a run that failed, but where that is what is asked."""
    arm, against = records.get(check.arm, {}), records.get(check.against, {})
    if check.measure == "failed":
        return {seed: float(failed(arm[seed])) - float(failed(against[seed]))
                for seed in sorted(arm.keys() & against.keys())}
    return {seed: value for seed, value in differences(records, check).items()
            if not failed(arm[seed]) and not failed(against[seed])}


def pooled(records: Records, block: str, check: Check) -> tuple[float, int]:
    """Standard deviation over seeds and its degrees of freedom: of all arms of the check's family,
    or of its own differences."""
    if block == "none":
        block, check = "A", replace(check, arm=FORKED[0], against="msa")
    records = of_block(records, block)
    families = [arms for reference, arms in FAMILIES.get(block, ())
                if check.against == reference and check.arm in arms]
    squares, freedom = 0.0, 0
    for arm in families[0] if families else (check.arm,):
        own = [value for value in _differences(records, replace(check, arm=arm)).values()
               if not math.isnan(value)]
        if len(own) > 1:
            squares += float(np.var(own, ddof=1)) * (len(own) - 1)
            freedom += len(own) - 1
    return (math.sqrt(squares / freedom), freedom) if freedom else (math.nan, 0)


def p_of_disagreement(expected: str, mean: float, error: float, margin: float,
                      freedom: int) -> float:
    """One-sided: how likely a mean as far on the wrong side is where the truth is at the margin."""
    beyond = {"near": abs(mean) - margin, "higher": margin - mean, "lower": mean + margin,
              "no higher": mean - margin, "no lower": -margin - mean}[expected]
    if error == 0:
        return 0.0 if beyond > 0 else 1.0
    inside = student_inside(abs(beyond) / error, freedom)
    return (1 - inside) / 2 if beyond > 0 else (1 + inside) / 2


def verdict_of(expected: str, low: float, high: float, margin: float) -> str:
    """Agree or undecided; whether a check disagrees is the claim's to say, by Holm's correction."""
    agrees, disagrees = EXPECTED[expected](low, high, margin)
    return AGREE if agrees and not disagrees else UNDECIDED


def _compare_failures(seeds: dict[int, float], missing: tuple[int, ...], check: Check) -> Found:
    """Two thirds of the seeds fail where the twin learns: agree. None does: disagree."""
    values = list(seeds.values())
    agrees = bool(values) and min(values) >= 0 and sum(values) >= 2 / 3 * len(values)
    return Found(check, seeds, missing, float(np.mean(values)) if values else math.nan, math.nan,
                 math.nan, math.nan, AGREE if agrees else UNDECIDED,
                 0.0 if values and max(values) <= 0 else 1.0)


def compare(records: Records, block: str, check: Check, spread_of: Records | None = None) -> Found:
    """`spread_of`: where the pooled standard deviation is from, unless from `records`."""
    spread_of = records if spread_of is None else spread_of
    records = of_block(records, block)
    seeds = _differences(records, check)
    have = records.get(check.arm, {}).keys() & records.get(check.against, {}).keys()
    missing = tuple(seed for seed in SEEDS[block] if seed not in have)
    if check.measure == "failed":
        return _compare_failures(seeds, missing, check)
    spread, freedom = pooled(spread_of, block, check)
    mean = float(np.mean(list(seeds.values()))) if seeds else math.nan
    margin = margin_of(records, check) if check.against in records else math.nan
    if not freedom or len(seeds) < 2 or math.isnan(mean):
        return Found(check, seeds, missing, mean, math.nan, math.nan, margin, UNDECIDED, 1.0)
    error = spread / math.sqrt(len(seeds))
    half = student_t(freedom, 1 - 2 * LEVEL) * error
    low, high = mean - half, mean + half
    lost = len(have & set(SEEDS[block])) - len(seeds)
    verdict = UNDECIDED if lost > LOST else verdict_of(check.expected, low, high, margin)
    p = 1.0 if lost > LOST else p_of_disagreement(check.expected, mean, error, margin, freedom)
    return Found(check, seeds, missing, mean, low, high, margin, verdict, p)


def _expand(records: Records, check: Check) -> list[Check]:
    """The checks that a check stands for: of the evaluations since copying emerged, and of the
    largest attached weight that learns in every seed."""
    if check.arm == "attached":
        learn = [arm for arm in ATTACHED
                 if arm in records and not any(map(failed, records[arm].values()))]
        return [replace(check, arm=learn[-1] if learn else ATTACHED[0])]
    if check.measure != PAST_COPYING:
        return [check]
    runs = [run for run in records.get(check.against, {}).values() if not failed(run)]
    since = max((emergence_step(run) for run in runs), default=math.nan)
    if math.isnan(since):
        return [replace(check, measure="bits_per_byte")]
    return [replace(check, measure=f"bits_per_byte at step {step}")
            for step in runs[0].curves["bits_per_byte", ""][0] if step >= since]


def judge(records: Records, claim: Claim, before: Records | None = None) -> tuple[list[Found], str]:
    """The checks, and the claim's verdict: it waits for runs while a seed is missing. `before`: the
    records of the exploratory part, for the claim that needs no new runs."""
    spread_of = records
    records = of_block(before or {} if claim.block == "none" else records, claim.block)
    found = [compare(records, claim.block, one, spread_of) for check in claim.checks
             for one in _expand(records, check)]
    lacking = any(seed not in records.get(arm, {}) for arm in claim.needs
                  for seed in SEEDS[claim.block])
    without_spread = claim.block == "none" and any(math.isnan(one.low) for one in found)
    if lacking or without_spread or any(one.missing for one in found):
        return found, NOT_RUN
    references = {check.against for check in claim.checks if check.measure != "failed"}
    if any(math.isnan(emergence_step(run)) for arm in references
           for run in records[arm].values() if not failed(run)):
        return found, UNDECIDED
    if min(one.p for one in found) <= LEVEL / len(found):  # Holm's first step
        return found, DISAGREE
    return found, AGREE if all(one.verdict == AGREE for one in found) else UNDECIDED


def _words(check: Check) -> str:
    pair = check.arm if check.other else f"{check.arm} − {check.against}"
    return f"{check.name}, {pair}: {check.expected}"


def _weighs(one: Found, verdict: str) -> tuple:
    """Sorts the checks of a claim by what its verdict rests on: a disagreement on the surest one,
    an undecided claim on the first check that does not agree."""
    return (one.p,) if verdict == DISAGREE else (one.verdict == AGREE,)


def answers_markdown(records: Records, before: Records) -> str:
    """One line for each claim, with the check that its verdict rests on."""
    lines = ["| the paper's claim | the pilot's difference | 90 % interval | margin | verdict | "
             "at the paper's setting, where that is another |", "|---|---|---|---|---|---|"]
    for claim in CLAIMS:
        found, verdict = judge(records, claim, before)
        one = min(found, key=lambda one: _weighs(one, verdict))
        margin = "–" if math.isnan(one.margin) else f"{one.margin:.4f}"
        seeds = f"{len(one.seeds)} of {len(SEEDS[claim.block])} seeds"
        lines.append(f"| {claim.says} | {_words(one.check)}; {_signed(one.mean)}, {seeds} | "
                     f"{one.interval} | {margin} | **{verdict}** | {claim.reading} |")
    return "\n".join(lines) + "\n"


def own_interval(one: Found) -> str:
    """By the spread of the check's own differences, where the verdict's is pooled."""
    values, count = [value for value in one.seeds.values() if not math.isnan(value)], len(one.seeds)
    if one.check.measure == "failed" or len(values) < max(2, count):
        return "none"
    half = student_t(count - 1, 1 - 2 * LEVEL) * float(np.std(values, ddof=1)) / math.sqrt(count)
    return f"{_signed(one.mean - half)} to {_signed(one.mean + half)}"


def claims_markdown(records: Records, before: Records) -> str:
    """One line for each check of each claim."""
    lines = ["| claim | block | difference | mean | 90 % interval | by its own SD | margin | seeds | verdict |",
             "|---|---|---|---|---|---|---|---|---|"]
    for claim in CLAIMS:
        found, verdict = judge(records, claim, before)
        for number, one in enumerate(found):
            first = (claim.says, claim.block) if number == 0 else ("", "")
            seeds = f"{len(one.seeds)} of {len(SEEDS[claim.block])}"
            lines.append(
                f"| {first[0]} | {first[1]} | {_words(one.check)} | {_signed(one.mean)} | "
                f"{one.interval} | {own_interval(one)} | {'–' if math.isnan(one.margin) else f'{one.margin:.4f}'} | "
                f"{seeds} | {f'**{verdict}**' if number == 0 else ''} |")
    return "\n".join(lines) + "\n"


def noise_markdown(records: Records, _before: Records) -> str:
    """The noise floor: how much the differences to msa spread over seeds, in block A."""
    lines = ["| measure | pooled SD over seeds | degrees of freedom |", "|---|---|---|"]
    for measure in ("bits_per_byte", "exact_match recall", "training_loss of the last tenth"):
        spread, freedom = pooled(records, "A", Check("window", "msa", measure, "near"))
        shown = "–" if math.isnan(spread) else f"{spread:.4f}"
        lines.append(f"| {measure} | {shown} | {freedom} |")
    return "\n".join(lines) + "\n"


TABLES = {"answers": answers_markdown, "registered": claims_markdown, "noise": noise_markdown}
