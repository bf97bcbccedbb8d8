#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Is the conversion near-lossless? What the records of studies/conversion/gpu.sh say, by the rules that
studies/conversion/README.md has had since before they were made: those of the forms small and large, or of the form even.

usage: judge.py RECORDS [--even]   (needs python/ of this repository: PYTHONPATH=python)
"""

import json
import math
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from records import Record

from msalab.evaluation.intervals import difference_of_ratios, interval_text, ratio_interval

MOST_EXCESS = 0.005  # of bits a token
FEWEST_SEEDS = 2


@dataclass(frozen=True)
class Rule:
    most_lost: float  # of right answers
    by_length: bool  # each length has this bound, or all lengths together
    control: float | None  # excess, to either side, of the positions where nothing is sparse, at most
    budgets: tuple
    alike: tuple  # options of a trained run that records must share to be compared


FIRST = Rule(0.02, False, None, (512, 1024), ("context", "batch", "steps"))
EVEN = Rule(0.03, True, 0.001, (512, 1024, 2048), ("context", "batch", "steps", "warmup"))
# Arms, and what their own attention is called.
OWN = {"msa-{}": "index@{}", "msa-{}-full": "index@{}", "window-{}": "window@{},first=1"}
FORCED = "index@{},first=1"
MOST_CHANGED = 0.001, 0.015  # of the bits and of right answers, to either side, by a forced first block
UNTRAINED = ("index@{}", "mean-key@{}", "mean-key@{},first=1", "quest@{}", "quest@{},first=1", "window@{},first=1")
YES, NO, OPEN = "near-lossless", "not near-lossless", "undecided"


def records(folder: Path, arm: str, config: str) -> dict[str, Record]:
    """Seed -> record; diverged runs have none."""
    found = {}
    for path in sorted(folder.glob(f"{arm}-seed-*.tar.xz")):
        with tarfile.open(path) as tar:
            if "evaluation.json" not in tar.getnames():
                continue
        record = Record(path)
        if config in record.configs:
            found[path.name.removesuffix(".tar.xz").rpartition("-")[2]] = record.select(config)
    return found


def kind_of(record: Record, names: list, with_answers: bool) -> str:
    """What records must share to be compared, these options among it. Of the model the weights: each version of
    transformers writes the other files in its own form. The tokens to train on have a sum, those of each measured
    document are counted."""
    run = record.answer.run
    weights = {name: its for name, its in run["model"].items() if name.endswith(".safetensors")}
    return json.dumps([weights, run["inputs"]["tokens"], {name: run["options"][name] for name in names},
                       record.tokens.tolist(), with_answers and [*record.right]])


def excess(one: list, base: list, first: int | None = None) -> dict:
    """Of bits a token, as a share of the base's; documents are drawn with replacement, seeds are averaged. first: of
    so many first positions of each document."""
    more, own = (np.mean([record.first(first)[0] for record in records], 0) for records in (one, base))
    return ratio_interval(more - own, own, 0)


def lengths_of(record: Record) -> list[int]:
    return sorted({int(name.partition("@")[2]) for name in record.right})


def gained(one: list, base: list, length: int | None = None) -> dict:
    """Share of right answers above the base's; exercises of all tasks, of all lengths or of one, are drawn with
    replacement."""
    def mean(records):
        return np.mean([np.concatenate([share for name, share in record.right.items()
                                        if length is None or name.endswith(f"@{length}")]) for record in records], 0)

    more = mean(one) - mean(base)
    return ratio_interval(more, np.ones(len(more)), 0)


def side_of(interval: dict, bound: float, sign: int) -> str:
    """Of an interval that should lie below the bound, or, with sign -1, above it."""
    low, high = interval["low"], interval["high"]
    if low is None:
        return OPEN
    if sign < 0:
        low, high, bound = -high, -low, -bound
    return YES if high < bound else NO if low > bound else OPEN


def is_even(pairs: list, rule: Rule, budget: int) -> bool:
    """Of positions that see at most the budget: is the excess there, which no selection can cost, not known to be
    beyond what the rule allows?"""
    found = rule.control and excess(*zip(*pairs), budget)
    return not found or found["low"] is None or found["low"] <= rule.control and found["high"] >= -rule.control


def verdict(pairs: list, rule: Rule, budget: int) -> str:
    """pairs: (record, base) of each seed."""
    one, base = zip(*pairs)
    if not is_even(pairs, rule, budget):
        return f"{OPEN}, because the arms differ where nothing is sparse"
    parts = [side_of(excess(one, base), MOST_EXCESS, 1),
             *(side_of(gained(one, base, length), -rule.most_lost, -1)
               for length in (lengths_of(one[0]) if rule.by_length else [None]))]
    if len(pairs) < FEWEST_SEEDS:
        return OPEN
    if NO in parts:
        return NO
    alone = [side_of(excess([mine], [other]), MOST_EXCESS, 1) for mine, other in pairs]
    return YES if {*parts, *alone} == {YES} else OPEN


def percent(interval: dict) -> dict:
    return {name: value if name == "units" or value is None else 100 * value for name, value in interval.items()}


def less_first(one: list, base: list, first: int) -> dict:
    """The excess less that of so many first positions of each document; documents are drawn with replacement."""
    def sums(positions):
        more, own = (np.mean([record.first(positions)[0] for record in records], 0) for records in (one, base))
        return more - own, own

    return difference_of_ratios(sums(None), sums(first), 0)


def describe_first(pairs: list, budget: int) -> list[str]:
    """What no selection can cost, and the excess less that."""
    one, base = zip(*pairs)
    found, less = percent(excess(one, base, budget)), percent(less_first(one, base, budget))
    return [f"  first {budget} positions, where nothing is sparse: {found['mean']:+.3f} %, 95 %: "
            f"{interval_text(found, 'documents', 3)}",
            f"  excess less that: {less['mean']:+.3f} %, 95 %: {interval_text(less, 'documents', 3)}"]


def describe(pairs: list) -> list[str]:
    one, base = zip(*pairs)
    found = percent(excess(one, base))
    bits = np.mean([record.nats.sum() / record.tokens.sum() for record in base]) / math.log(2)
    lines = [f"  excess {found['mean']:+.3f} % of {bits:.4f} bits a token, 95 %: "
             f"{interval_text(found, 'documents', 3)}"]
    if one[0].right:
        answers = percent(gained(one, base))
        lines.append(f"  right answers {answers['mean']:+.1f} of 100, 95 %: {interval_text(answers, 'exercises', 1)}")
        lengths = lengths_of(one[0])
        for length in lengths if len(lengths) > 1 else []:
            answers = percent(gained(one, base, length))
            lines.append(f"  right answers at {length} tokens {answers['mean']:+.1f} of 100, 95 %: "
                         f"{interval_text(answers, 'exercises', 1)}")
    if len(pairs) > 1:
        seeds = [100 * excess([mine], [other])["mean"] for mine, other in pairs]
        lines.append(f"  excess of each seed: {', '.join(f'{value:+.3f} %' for value in seeds)}")
    for task in one[0].right:
        mine, other = (100 * np.mean([record.right[task].mean() for record in records]) for records in (one, base))
        lines.append(f"  {task}: {mine:.1f} against {other:.1f} of 100")
    return lines


def with_each(folder: Path, arm: str) -> list[str]:
    """The models of an arm with each attention that they were measured with, seeds averaged."""
    lines = []
    for config in next(iter(records(folder, arm, "dense").values())).configs:
        found = records(folder, arm, config).values()
        bits = np.mean([record.nats.sum() / record.tokens.sum() for record in found]) / math.log(2)
        right = [np.concatenate([*record.right.values()]) for record in found if record.right]
        answers = f", {100 * np.mean(right):.1f} right answers of 100" if right else ""
        lines.append(f"  {arm} with {config}: {bits:.4f} bits a token{answers}")
    return lines


def beside_own(folder: Path, arm: str, config: str) -> list[str]:
    """What a selection costs the models of an arm that have it, by their own dense attention."""
    own = records(folder, arm, "dense")
    pairs = [(record, own[seed]) for seed, record in sorted(records(folder, arm, config).items())]
    return ["  beside its own dense attention:", *(f"  {line}" for line in describe(pairs)[:1 + bool(pairs[0][0].right)])]


def beside(folder: Path, arm: str, other: str, config: str) -> list[str]:
    """An arm beside another one of the same seeds, which has the same attention."""
    found, base = records(folder, arm, config), records(folder, other, config)
    pairs = [(found[seed], base[seed]) for seed in sorted(found.keys() & base.keys())]
    return [f"  beside {other}, seeds: {len(pairs)}:", *(f"  {line}" for line in describe(pairs))] if pairs else []


def change_of(pairs: list) -> str:
    """pairs: of each seed the model with the first block forced, and the same model without."""
    one, base = zip(*pairs)
    bits, right = MOST_CHANGED
    sides = [side for found, bound in [(excess(one, base), bits),
                                       *((gained(one, base, length), right) for length in lengths_of(one[0]))]
             for side in (side_of(found, bound, 1), side_of(found, -bound, -1))]
    if len(pairs) < FEWEST_SEEDS:
        return OPEN
    return "changes it" if NO in sides else "changes little" if {*sides} == {YES} else OPEN


def beside_unforced(folder: Path, arm: str, budget: int) -> list[str]:
    """What forcing the first block changes in the models of an arm, which keep as many blocks."""
    found, base = (records(folder, arm, config.format(budget)) for config in (FORCED, OWN["msa-{}"]))
    pairs = [(found[seed], base[seed]) for seed in sorted(found)]
    return [f"  first block forced, seeds: {len(pairs)}: {change_of(pairs)}",
            *(f"  {line}" for line in describe(pairs))] if pairs else []


def main():
    if len(sys.argv) not in (2, 3) or sys.argv[2:] not in ([], ["--even"]):
        sys.exit(__doc__)
    folder, rule = Path(sys.argv[1]), EVEN if sys.argv[2:] else FIRST
    base = records(folder, "dense", "dense")
    if not base:
        sys.exit(f"{folder}: has no record of the arm dense")

    def pairs_of(arm, config, trained):
        found = records(folder, arm, config)
        pairs = [(found[seed], base[seed]) for seed in sorted(found.keys() & base.keys())]
        names = [name for name in rule.alike if trained or name not in ("steps", "warmup")]
        asked = trained or all(record.right for record in found.values())
        if len({kind_of(record, names, asked) for pair in pairs for record in pair}) > 1:
            sys.exit(f"{folder}: records of {arm} and dense are of different models, tokens, steps or texts")
        return pairs

    trained = next(iter(base.values())).answer["trained"].row()
    print(f"after {trained['trained_tokens'] / 1e6:.1f} million tokens:", *with_each(folder, "dense"), sep="\n")
    for kind, own in OWN.items():
        for budget in rule.budgets:
            arm = kind.format(budget)
            pairs = pairs_of(arm, own.format(budget), True)
            if pairs:
                print(f"{arm}, seeds: {len(pairs)}: {verdict(pairs, rule, budget)}", *describe(pairs),
                      *describe_first(pairs, budget), *beside_own(folder, arm, own.format(budget)),
                      *with_each(folder, arm), sep="\n")
                if kind == "msa-{}-full":
                    print(*beside(folder, arm, f"msa-{budget}", own.format(budget)),
                          *beside_unforced(folder, arm, budget), sep="\n")
    for budget in rule.budgets:
        for config in (one.format(budget) for one in UNTRAINED):
            pairs = pairs_of("fitted", config, False)
            if pairs:
                print(f"not trained, {config}:", *describe(pairs), *beside_own(folder, "fitted", config), sep="\n")


if __name__ == "__main__":
    main()
