#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Is the conversion near-lossless? What the records of gpu/conversion.sh say, by the rule that
docs/dense_to_msa.md has had since before they were made.

usage: judge.py RECORDS   (needs python/ of this repository: PYTHONPATH=python)
"""

import io
import math
import sys
import tarfile
from pathlib import Path

import h5py
import numpy as np

from msalab.evaluation.intervals import interval_text, ratio_interval

MOST_EXCESS, MOST_POINTS = 0.005, 0.02  # of bits a token, and of exact matches
OWN = {"msa": "index@{}", "window": "window@{},first=1"}  # what an arm's own attention is called
UNTRAINED = ("index@{}", "mean-key@{}", "mean-key@{},first=1", "quest@{}", "quest@{},first=1", "window@{},first=1")


class Record:
    """nats [token] and right [answer] of an arm's model with the attention that `config` names."""

    def __init__(self, path: Path, config: str):
        with tarfile.open(path) as tar, h5py.File(io.BytesIO(tar.extractfile("evaluation.h5").read())) as file:
            names = [name.decode() for name in file["configs"][()]]
            row = names.index(config)
            text = file["evaluate/text"]
            self.nats = text["nats"][row].astype(float)
            self.document = text["document"][()][text["sequence"][()]]
            self.right = {name: group["right"][row] for name, group in sorted(file["evaluate/retrieval"].items())}


def records(folder: Path, arm: str, config: str) -> dict[str, Record]:
    """Seed -> record; diverged runs have none."""
    found = {}
    for path in sorted(folder.glob(f"{arm}-seed-*.tar")):
        with tarfile.open(path) as tar:
            whole = "evaluation.h5" in tar.getnames()
        if whole:
            found[path.stem.rpartition("-")[2]] = Record(path, config)
    return found


def excess(one: list, base: list, seed: int = 0) -> dict:
    """Of bits a token, as a share of the base's; documents are drawn with replacement, seeds are averaged."""
    document = base[0].document
    if any(not np.array_equal(record.document, document) for record in (*one, *base)):
        sys.exit("the records are not of the same text")
    more, own = (np.mean([record.nats for record in records], 0) for records in (one, base))
    by = [[values[document == number].sum() for number in np.unique(document)] for values in (more - own, own)]
    return ratio_interval(by[0], by[1], seed)


def judge(one: list, base: list):
    """(lines, near-lossless)"""
    found = excess(one, base)
    percent = {name: value if name == "units" or value is None else 100 * value for name, value in found.items()}
    lines = [f"  excess {percent['mean']:+.3f} % of {np.mean([r.nats.mean() for r in base]) / math.log(2):.4f} bits "
             f"a token, 95 %: {interval_text(percent, 'documents', 3)}"]
    good = found["high"] is not None and found["high"] < MOST_EXCESS
    for task in base[0].right:
        mine, other = (np.mean([record.right[task].mean() for record in records]) for records in (one, base))
        lines.append(f"  {task}: {100 * mine:.1f} against {100 * other:.1f} of 100")
        good = good and mine >= other - MOST_POINTS
    return lines, good


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = Path(sys.argv[1])
    base = records(folder, "dense", "dense")
    if not base:
        sys.exit(f"{folder}: has no record of the arm dense")
    arms = [(f"{kind}-{budget}", own.format(budget)) for kind, own in OWN.items() for budget in (512, 1024)]
    for arm, config in arms:
        found = records(folder, arm, config)
        seeds = sorted(found.keys() & base.keys())
        if seeds:
            lines, good = judge([found[seed] for seed in seeds], [base[seed] for seed in seeds])
            print(f"{arm}, seeds {', '.join(seeds)}: {'near-lossless' if good else 'not near-lossless'}", *lines,
                  sep="\n")
    for budget in (512, 1024):  # of the model as it was: each seed has the same one
        for config in (one.format(budget) for one in UNTRAINED):
            found = records(folder, "fitted", config)
            seeds = sorted(found.keys() & base.keys())
            if seeds:
                lines, _ = judge([found[seed] for seed in seeds], [base[seed] for seed in seeds])
                print(f"not trained, {config}:", *lines, sep="\n")


if __name__ == "__main__":
    main()
