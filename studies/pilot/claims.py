# SPDX-License-Identifier: MIT
"""The runs of a pilot sweep, arm by arm, against the claims of the paper's appendix.

Runs of one seed read the same bytes in the same order, so arms are compared by differences within
a seed. The rule for a verdict is CLAIMS, EXPECTED and MARGINS below; studies/pilot/exploratory.md says it in
words.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

import numpy as np
from scipy.stats import t as student

from msalab.table import Table

from .runs import LATER, Records, Run, emergence_step, require_comparable

CONFIDENCE = 0.95


def student_inside(t: float, freedom: int) -> float:
    """The probability of |T| <= t, T of Student's distribution with `freedom` degrees."""
    return float(1 - 2 * student.sf(t, freedom))


def student_t(freedom: int, confidence: float = CONFIDENCE) -> float:
    """The quantile t for which |T| <= t has this probability."""
    return float(student.ppf((1 + confidence) / 2, freedom))


@dataclass(frozen=True)
class Interval:
    n: int
    mean: float  # NaN without differences
    low: float   # NaN with two or fewer
    high: float


def interval_of(differences) -> Interval:
    """Mean and 95 % interval over seeds; none with two or fewer, or where one is not known."""
    found = np.asarray(differences, float)
    n, mean = len(found), float(found.mean()) if len(found) else math.nan
    if n <= 2 or math.isnan(mean):
        return Interval(n, mean, math.nan, math.nan)
    half = student_t(n - 1) * float(found.std(ddof=1)) / math.sqrt(n)
    return Interval(n, mean, mean - half, mean + half)


# (low, high, margin) -> agree, disagree. An interval that does neither is undecided.
EXPECTED = {
    "higher": lambda low, high, m: (low > 0, high < m),
    "lower": lambda low, high, m: (high < 0, low > -m),
    "near": lambda low, high, m: (-m < low and high < m, low > m or high < -m),
    "no higher": lambda low, high, m: (high < m, low > m),
    "no lower": lambda low, high, m: (low > -m, high < -m),
}
AGREE, DISAGREE, UNDECIDED, NOT_RUN = "agree", "disagree", "undecided", "waits for runs"
# First word of a measure -> margin, and whether it is a share of the reference's mean.
MARGINS = {"bits_per_byte": (0.01, True), "training_loss": (0.01, True),
           "exact_match": (0.05, False), "gradient_spike": (1.0, False), "diverged": (0.5, False),
           "score_recall": (0.02, False), "kl": (0.02, False),
           "kl_loss": (0.02, False), "first_block_rate": (0.02, False),
           "sink_mass_dense": (0.01, False), "local_rate": (0.02, False),
           "far_overlap": (0.05, False)}


def verdict_of(expected: str, found: Interval, margin: float) -> str:
    if math.isnan(found.low):
        return UNDECIDED
    agrees, disagrees = EXPECTED[expected](found.low, found.high, margin)
    return AGREE if agrees else DISAGREE if disagrees else UNDECIDED


@dataclass(frozen=True)
class Check:
    """`measure` of `arm` minus that of `against`; within one arm, minus another measure of it."""
    arm: str
    against: str
    measure: str
    expected: str
    other: str = ""  # measure of `against`; empty: the same

    @property
    def name(self) -> str:
        return f"{self.measure} − {self.other}" if self.other else self.measure


REFERENCES = ("chance", "chance given the neighbour", "uniform attention", "one half")  # measures that are a bar and no result
PAST_COPYING = "bits_per_byte at every evaluation"  # from the emergence of copying on


@dataclass(frozen=True)
class Claim:
    key: str
    paper: str
    checks: tuple[Check, ...]
    could_explain: str
    not_asked: str = ""  # what of the claim the records cannot answer


def _pairs(measures: dict[str, str], *pairs) -> tuple[Check, ...]:
    return tuple(Check(arm, against, measure, expected) for arm, against in pairs
                 for measure, expected in measures.items())


_SAME = {"bits_per_byte": "near", "exact_match recall": "near"}
CLAIMS = (
    Claim("training-dynamics-pt", "Loss and gradient norm of MSA follow full attention.",
          _pairs({"bits_per_byte": "near", "training_loss": "near", "gradient_spike": "near"},
                 ("msa", "full")),
          "256 of 2048 tokens are few for layers whose attention is spread out; short training"),
    Claim("training-dynamics-cpt",
          "In continued pretraining KL falls fast in the warm-up and stays low; recall stays high, "
          "score recall above block recall.",
          (Check("cpt", "cpt", "kl_loss at the end of warm-up", "lower", "kl_loss at step 0"),
           Check("cpt", "cpt", "kl", "no higher", "first kl"),
           Check("cpt", "cpt", "score_recall", "no lower", "first score_recall"),
           Check("cpt", "cpt", "score_recall", "higher", "block_recall")),
          "600 steps; the first probe is behind the warm-up",
          "whether the gap to full attention closes: no dense run goes on as long"),
    Claim("gradient-sources",
          "From step 0, the LM loss alone retrieves badly, the KL loss alone loses quality on "
          "short context; both together are best.",
          (Check("lm-no-warmup", "both-no-warmup", "exact_match recall", "lower"),
           Check("no-warmup", "both-no-warmup", "bits_per_byte", "higher")),
          "the paper's runs may not detach the KL gradient; a value head comes with the LM signal"),
    Claim("detach",
          "Without detaching, a large KL weight diverges and a stable one slowly regresses.",
          (Check("attached-w100", "detached-w100", "diverged", "higher"),
           Check("attached-w1", "msa", "bits_per_byte", "higher")),
          "the paper gives no weight; its runs have a value head; clipping at norm 1 hides spikes; "
          "a slow regression needs longer runs"),
    Claim("warm-up", "A warm-up of the Index Branch is better on short context and in retrieval.",
          (Check("no-warmup", "msa", "bits_per_byte", "higher"),
           Check("no-warmup", "msa", "exact_match recall", "lower")),
          "the paper's runs have a value head; retrieval that is near 1 cannot rise"),
    Claim("sink", "A learnable sink gains nothing consistent.",
          _pairs({"bits_per_byte": "no lower"}, ("sink", "msa"), ("full-sink", "full")),
          "the paper's runs have a value head",
          "which heads give their mass to the sink: docs/paper.md has them, Figure 12"),
    Claim("window", "Dynamic selection beats the first block and a window at the same budget.",
          _pairs({"bits_per_byte": "higher", "exact_match recall": "lower"}, ("window", "msa")),
          "30 % of the sequences are exercises that need far blocks; the paper's runs have a "
          "value head"),
    Claim("window-throughout", "Dynamic selection beats the window along all of training.",
          _pairs({PAST_COPYING: "higher"}, ("window", "msa")),
          "nothing far is used before copying has emerged",
          "evaluations before copying has emerged"),
    Claim("block-size", "Blocks of 32, 64 and 128 at equal tokens change little.",
          _pairs(_SAME, ("blocks-32", "msa"), ("blocks-128", "msa")),
          "128 is a sixteenth of the context: two blocks are a coarse choice"),
    Claim("forced-blocks", "Forced first and local blocks change little.",
          _pairs(_SAME, ("forced-first", "msa"), ("forced-local-2", "msa")),
          "a forced block is a quarter of the four that a query keeps"),
    Claim("value-head", "With a warm-up, a value head gains nothing systematic.",
          (Check("both", "msa", "bits_per_byte", "no lower"),
           Check("both", "msa", "exact_match recall", "no higher")),
          "the paper shows this in continued pretraining of the large model; the value head comes "
          "with the LM signal"),
    Claim("emergence", "The first block is chosen without being forced; heads show a sink and a "
          "diagonal, groups differ in stripes.",
          (Check("msa", "msa", "first_block_rate", "higher", "chance"),
           Check("msa", "msa", "sink_mass_dense", "higher", "uniform attention"),
           Check("msa", "msa", "local_rate", "higher", "chance"),
           Check("msa", "msa", "far_overlap", "no higher", "one half")),
          "a sink may need a larger model, more bytes or a first token of its own: sequences "
          "here begin anywhere in a text",
          "what the stripes look like: the heat maps show it"),
)


@dataclass(frozen=True)
class Found:
    check: Check
    seeds: dict[int, float]  # differences
    interval: Interval
    margin: float
    verdict: str


@dataclass(frozen=True)
class Judged:
    claim: Claim
    found: tuple[Found, ...]
    verdict: str
    reason: str


def is_recorded(run: Run, measure: str) -> bool:
    """Was this measure there when the run was recorded? A run that diverged has no measures."""
    return run.diverged or measure in run.values or measure.removeprefix("first ") not in LATER


def unrecorded(records: Records) -> list[str]:
    """The runs with MSA that lack a measure of LATER, as arm/seed."""
    return [f"{arm}/{seed}" for arm, seeds in records.items() for seed, run in sorted(seeds.items())
            if not run.diverged and run.options["attention"] == "msa"
            and not all(is_recorded(run, name) for name in LATER)]


def differences(records: Records, check: Check) -> dict[int, float]:
    """Within each seed that both arms have; NaN where a run lacks the measure, and without the
    seeds that were recorded before the measure was there."""
    arm, against = records.get(check.arm, {}), records.get(check.against, {})
    for seed in arm.keys() & against.keys():
        if not arm[seed].diverged and not against[seed].diverged:
            require_comparable(arm[seed], against[seed])
    return {seed: arm[seed].values.get(check.measure, math.nan)
            - against[seed].values.get(check.other or check.measure, math.nan)
            for seed in sorted(arm.keys() & against.keys())
            if is_recorded(arm[seed], check.measure)
            and is_recorded(against[seed], check.other or check.measure)}


def margin_of(records: Records, check: Check) -> float:
    """What difference counts as one; NaN for a measure without a margin."""
    size, relative = MARGINS.get(check.measure.split(" ")[0], (math.nan, False))
    if not relative:
        return size
    return size * float(np.mean([run.values.get(check.measure, math.nan)
                                 for run in records[check.against].values()]))


def compare(records: Records, check: Check) -> Found:
    seeds = differences(records, check)
    found, margin = interval_of(list(seeds.values())), margin_of(records, check)
    return Found(check, seeds, found, margin, verdict_of(check.expected, found, margin))


def _copying_emerged(records: Records, arm: str) -> bool:
    return not any(math.isnan(emergence_step(run)) for run in records[arm].values())


def _expand(records: Records, check: Check) -> list[Check]:
    """One check for each evaluation since copying emerged in every run of the reference arm."""
    if check.measure != PAST_COPYING:
        return [check]
    runs = list(records[check.against].values())
    since = max(emergence_step(run) for run in runs)
    return [Check(check.arm, check.against, f"bits_per_byte at step {step}", check.expected)
            for step in runs[0].curves["bits_per_byte", ""][0] if step >= since]


def judge(records: Records, claim: Claim) -> Judged:
    """agree: every check agrees. disagree: one disagrees. Otherwise undecided, as where copying has
    not emerged in a run of a reference arm. Not run yet: an arm has no records."""
    arms = {name for check in claim.checks for name in (check.arm, check.against)}
    if missing := sorted(arms - records.keys()):
        return Judged(claim, (), NOT_RUN, f"no records of {', '.join(missing)}")
    late = sorted({check.against for check in claim.checks
                   if not _copying_emerged(records, check.against)})
    if late:
        return Judged(claim, (), UNDECIDED, f"copying has not emerged in {', '.join(late)}")
    found = tuple(compare(records, one) for check in claim.checks
                  for one in _expand(records, check))
    verdicts = {one.verdict for one in found}
    verdict = (DISAGREE if DISAGREE in verdicts else AGREE if verdicts == {AGREE} else UNDECIDED)
    few = min((one.interval.n for one in found if one.interval.n), default=0)
    return Judged(claim, found, verdict, f"{few} seeds give no interval" if few <= 2 else "")


def judge_all(records: Records) -> list[Judged]:
    return [judge(records, claim) for claim in CLAIMS]


def pairs_of(claim: Claim) -> list[tuple[str, str]]:
    return list(dict.fromkeys((check.arm, check.against) for check in claim.checks
                              if check.arm != check.against))


def all_differences(records: Records, arm: str, against: str) -> list[Found]:
    """Every measure that both arms have, without a verdict."""
    known = [run.values for name in (arm, against) for run in records[name].values()]
    return [compare(records, Check(arm, against, measure, "near")) for measure in known[0]
            if all(measure in values for values in known) and measure not in REFERENCES]


def numbers(records: Records) -> Table:
    """A row for each check and each other measure of the pairs that have records."""
    rows = []
    for judged in judge_all(records):
        claim = judged.claim
        rows += [_row(claim.key, found, True) for found in judged.found]
        if judged.verdict == NOT_RUN:
            rows.append((claim.key, "", "", "", "", 0, *[math.nan] * 4, NOT_RUN))
        done = {(found.check.arm, found.check.name) for found in judged.found}
        for arm, against in pairs_of(claim):
            if arm in records and against in records:
                rows += [_row(claim.key, found, False)
                         for found in all_differences(records, arm, against)
                         if (arm, found.check.name) not in done]
    return Table.from_rows(("claim", "arm", "against", "measure", "expected", "seeds", "mean",
                            "low", "high", "margin", "verdict"), rows)


def _row(key: str, found: Found, judged: bool) -> tuple:
    check, at = found.check, found.interval
    return (key, check.arm, check.against, check.name, check.expected if judged else "", at.n,
            at.mean, at.low, at.high, found.margin if judged else math.nan,
            found.verdict if judged else "")


def _or_null(value: float):
    return None if math.isnan(value) else value


def as_json(records: Records) -> str:
    """What numbers() has, with the differences of each seed and the claims' words."""
    def of_found(found: Found) -> dict:
        at = found.interval
        return {"arm": found.check.arm, "against": found.check.against,
                "measure": found.check.name, "expected": found.check.expected,
                "differences": {str(seed): _or_null(value) for seed, value in found.seeds.items()},
                "mean": _or_null(at.mean), "low": _or_null(at.low), "high": _or_null(at.high),
                "margin": found.margin, "verdict": found.verdict}

    return json.dumps({"format": "msalab-pilot", "confidence": CONFIDENCE, "claims": [
        {"claim": judged.claim.key, "paper": judged.claim.paper, "verdict": judged.verdict,
         "reason": judged.reason, "checks": [of_found(found) for found in judged.found],
         "could_explain": judged.claim.could_explain, "not_asked": judged.claim.not_asked}
        for judged in judge_all(records)]}, indent=1) + "\n"


def _signed(value: float) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:+,.0f}" if abs(value) >= 1000 else f"{value:+.4f}"


def _of(at: Interval) -> str:
    return "none" if math.isnan(at.low) else f"{_signed(at.low)} to {_signed(at.high)}"


def claims_markdown(records: Records) -> str:
    """The table of studies/pilot/exploratory.md."""
    lines = ["| paper says | pilot says | 95 % interval, seeds | verdict | what could explain a "
             "disagreement |", "|---|---|---|---|---|"]
    for judged in judge_all(records):
        claim = judged.claim
        says = [f"{one.check.name}, {one.check.arm} − {one.check.against}: "
                f"{_signed(one.interval.mean)}" if one.check.arm != one.check.against else
                f"{one.check.name}, {one.check.arm}: {_signed(one.interval.mean)}"
                for one in judged.found]
        spread = [f"{_of(one.interval)}, {one.interval.n}, {one.verdict}" if one.interval.n else
                  "not in these records" for one in judged.found]
        asked = f" Not asked: {claim.not_asked}." if claim.not_asked else ""
        lines.append(f"| {claim.paper}{asked} | {'<br>'.join(says) or judged.reason} | "
                     f"{'<br>'.join(spread)} | **{judged.verdict}** | {claim.could_explain} |")
    return "\n".join(lines) + "\n"


def differences_markdown(records: Records, arm: str, against: str) -> str:
    """Every measure of a pair of arms."""
    lines = [f"| {arm} − {against} | mean | 95 % interval | seeds |", "|---|---|---|---|"]
    lines += [f"| {found.check.name} | {_signed(found.interval.mean)} | {_of(found.interval)} | "
              f"{found.interval.n} |" for found in all_differences(records, arm, against)]
    return "\n".join(lines) + "\n"


def stability_markdown(records: Records) -> str:
    """Runs with and without detaching: which diverged, which stalled, and where their loss is."""
    lines = ["| arm | seed | diverged | stalled | training loss at step 0 | of the last tenth | bits "
             "per byte |", "|---|---|---|---|---|---|---|"]
    for arm in records:
        if not (arm == "msa" or arm.startswith(("attached", "detached"))):
            continue
        for seed, run in sorted(records[arm].items()):
            if run.diverged:
                lines.append(f"| {arm} | {seed} | yes | | | | |")
                continue
            values = run.values
            lines.append(f"| {arm} | {seed} | no | {'yes' if values['stalled'] else 'no'} | "
                         f"{run.curves['loss', ''][1][0]:.3f} | "
                         f"{values['training_loss of the last tenth']:.3f} | "
                         f"{values['bits_per_byte']:.3f} |")
    return "\n".join(lines) + "\n"


DOC_TABLES = {"claims": claims_markdown, "stability": stability_markdown,
              "msa-full": lambda records: differences_markdown(records, "msa", "full"),
              "window-msa": lambda records: differences_markdown(records, "window", "msa")}
_MARKED = re.compile(r"(<!-- table ([\w-]+) from studies/pilot/records -->\n).*?(<!-- end -->)",
                     re.DOTALL)


def with_tables(text: str, records: Records) -> str:
    """A page with its tables as the records have them, between <!-- table NAME from
    studies/pilot/records --> and <!-- end -->."""
    return _MARKED.sub(lambda at: at[1] + DOC_TABLES[at[2]](records) + at[3], text)
