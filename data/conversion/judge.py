#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Is the conversion near-lossless? What the records of gpu/conversion.sh say, by the rule that
docs/dense_to_msa.md has had since before they were made.

usage: judge.py RECORDS   (needs python/ of this repository: PYTHONPATH=python)
"""

import json
import math
import sys
import tarfile
from pathlib import Path

import numpy as np
from records import Record

from msalab.evaluation.intervals import interval_text, ratio_interval

MOST_EXCESS, MOST_LOST = 0.005, 0.02  # of bits a token, and of right answers
FEWEST_SEEDS = 2
OWN = {"msa": "index@{}", "window": "window@{},first=1"}  # what an arm's own attention is called
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


def kind_of(record: Record, trained: bool) -> str:
    """What records must share to be compared; one whose model was not trained has its own steps."""
    run = record.summary
    names = ("context", "batch", *(("steps",) if trained else ()))
    return json.dumps([run["model"], run["inputs"]["tokens"], {name: run["options"][name] for name in names},
                       record.tokens.tolist(), [*record.right]])


def excess(one: list, base: list) -> dict:
    """Of bits a token, as a share of the base's; documents are drawn with replacement, seeds are averaged."""
    more, own = (np.mean([record.nats for record in records], 0) for records in (one, base))
    return ratio_interval(more - own, own, 0)


def gained(one: list, base: list) -> dict:
    """Share of right answers above the base's; exercises of all tasks are drawn with replacement."""
    mine, other = (np.mean([np.concatenate([*record.right.values()]) for record in records], 0)
                   for records in (one, base))
    return ratio_interval(mine - other, np.ones(len(mine)), 0)


def side_of(interval: dict, bound: float, sign: int) -> str:
    """Of an interval that should lie below the bound, or, with sign -1, above it."""
    low, high = interval["low"], interval["high"]
    if low is None:
        return OPEN
    if sign < 0:
        low, high, bound = -high, -low, -bound
    return YES if high < bound else NO if low > bound else OPEN


def verdict(pairs: list) -> str:
    """pairs: (record, base) of each seed."""
    one, base = zip(*pairs)
    parts = [side_of(excess(one, base), MOST_EXCESS, 1), side_of(gained(one, base), -MOST_LOST, -1)]
    if NO in parts:
        return NO
    alone = [side_of(excess([mine], [other]), MOST_EXCESS, 1) for mine, other in pairs]
    return YES if len(pairs) >= FEWEST_SEEDS and {*parts, *alone} == {YES} else OPEN


def describe(pairs: list) -> list[str]:
    def percent(interval):
        return {name: value if name == "units" or value is None else 100 * value for name, value in interval.items()}

    one, base = zip(*pairs)
    found, answers = percent(excess(one, base)), percent(gained(one, base))
    bits = np.mean([record.nats.sum() / record.tokens.sum() for record in base]) / math.log(2)
    lines = [f"  excess {found['mean']:+.3f} % of {bits:.4f} bits a token, 95 %: "
             f"{interval_text(found, 'documents', 3)}",
             f"  right answers {answers['mean']:+.1f} of 100, 95 %: {interval_text(answers, 'exercises', 1)}"]
    if len(pairs) > 1:
        seeds = [100 * excess([mine], [other])["mean"] for mine, other in pairs]
        lines.append(f"  excess of each seed: {', '.join(f'{value:+.3f} %' for value in seeds)}")
    for task in base[0].right:
        mine, other = (100 * np.mean([record.right[task].mean() for record in records]) for records in (one, base))
        lines.append(f"  {task}: {mine:.1f} against {other:.1f} of 100")
    return lines


def with_each(folder: Path, arm: str) -> list[str]:
    """The models of an arm with each attention that they were measured with, seeds averaged."""
    lines = []
    for config in next(iter(records(folder, arm, "dense").values())).configs:
        found = records(folder, arm, config).values()
        bits = np.mean([record.nats.sum() / record.tokens.sum() for record in found]) / math.log(2)
        right = np.mean([np.concatenate([*record.right.values()]) for record in found])
        lines.append(f"  {arm} with {config}: {bits:.4f} bits a token, {100 * right:.1f} right answers of 100")
    return lines


def beside_own(folder: Path, arm: str, config: str) -> list[str]:
    """What a selection costs the models of an arm that have it, by their own dense attention."""
    own = records(folder, arm, "dense")
    pairs = [(record, own[seed]) for seed, record in sorted(records(folder, arm, config).items())]
    return ["  beside its own dense attention:", *(f"  {line}" for line in describe(pairs)[:2])]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    base = records(folder, "dense", "dense")
    if not base:
        sys.exit(f"{folder}: has no record of the arm dense")

    def pairs_of(arm, config, trained):
        found = records(folder, arm, config)
        pairs = [(found[seed], base[seed]) for seed in sorted(found.keys() & base.keys())]
        if len({kind_of(record, trained) for pair in pairs for record in pair}) > 1:
            sys.exit(f"{folder}: records of {arm} and dense are of different models, tokens, steps or texts")
        return pairs

    run = next(iter(base.values())).summary
    print(f"after {run['tokens'] / 1e6:.1f} million tokens:", *with_each(folder, "dense"), sep="\n")
    for kind, own in OWN.items():
        for budget in (512, 1024):
            arm = f"{kind}-{budget}"
            pairs = pairs_of(arm, own.format(budget), True)
            if pairs:
                print(f"{arm}, seeds: {len(pairs)}: {verdict(pairs)}", *describe(pairs),
                      *beside_own(folder, arm, own.format(budget)), *with_each(folder, arm), sep="\n")
    for budget in (512, 1024):
        for config in (one.format(budget) for one in UNTRAINED):
            pairs = pairs_of("fitted", config, False)
            if pairs:
                print(f"not trained, {config}:", *describe(pairs), *beside_own(folder, "fitted", config), sep="\n")


if __name__ == "__main__":
    main()
