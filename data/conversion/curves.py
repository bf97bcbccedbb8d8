#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How far behind the dense arm is an arm of gpu/conversion.sh while both train? They read the same tokens in the same
order and no token twice, so the loss of a step is one on text that the model has not seen, and the difference of a
step's losses is that of the arms.

usage: curves.py RECORDS SEED [OUT]   (PYTHONPATH=python; RECORDS: folder of ARM-seed-SEED.tar.xz; OUT: folder of the
picture)
"""

import csv
import io
import sys
import tarfile
from pathlib import Path

import numpy as np

from msalab.evaluation.intervals import FEWEST, interval_text, ratio_interval
from msalab.plots import style
from msalab.plots.table import Table

STRETCH = 20  # steps of a row of the table and of a point of the picture


def losses(curves) -> dict[int, float]:
    """Of each step, nats per token."""
    return {int(row["step"]): float(row["value"]) for row in csv.DictReader(curves)
            if (row["group"], row["name"]) == ("train", "loss")}


def read(folder: Path, seed: str) -> dict[str, dict[int, float]]:
    """Arm -> its losses."""
    end, found = f"-seed-{seed}.tar.xz", {}
    for path in folder.glob(f"*{end}"):
        with tarfile.open(path) as tar:
            found[path.name.removesuffix(end)] = losses(io.TextIOWrapper(tar.extractfile("curves.csv")))
    return found


def behind(arm: dict, dense: dict) -> dict[int, dict]:
    """First step of a stretch -> the difference as a share of the dense loss; steps are drawn with replacement."""
    steps = sorted(arm.keys() & dense.keys())
    return {first: ratio_interval([arm[step] - dense[step] for step in own], [dense[step] for step in own], 0)
            for first in range(0, len(steps), STRETCH) if len(own := steps[first:first + STRETCH]) >= FEWEST}


@style.styled
def draw(table: Table, out: Path):
    figure = style.new_figure(2.8)
    axes = figure.subplots()
    for place, arm in enumerate(sorted(set(table["arm"]))):
        own = table.where(arm=arm)
        whiskers = (own["percent"] - own["low"], own["high"] - own["percent"])
        axes.errorbar(own["step"] + STRETCH / 2, own["percent"], whiskers, label=arm, capsize=2, **style.series_style(place))
    axes.axhline(0.5, color=style.GUIDE, linestyle=":", label="near-lossless: less")
    axes.set(xlabel="step of 131K tokens", ylabel="loss above dense, %", ylim=(0, None))
    axes.legend()
    style.save(figure, table, out, "conversion_curves")


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    runs = read(Path(sys.argv[1]), sys.argv[2])
    if "dense" not in runs:
        sys.exit(f"{sys.argv[1]}: has no dense-seed-{sys.argv[2]}.tar.xz")
    dense = runs.pop("dense")
    rows = []
    for arm, curve in sorted(runs.items()):
        for first, one in behind(curve, dense).items():
            percent = {name: 100 * one[name] for name in ("mean", "low", "high")} | {"units": one["units"]}
            rows.append([arm, first, *[*percent.values()][:3]])
            print(f"{arm}, steps {first} to {first + one['units'] - 1}: {percent['mean']:+.2f} %, 95 %: "
                  f"{interval_text(percent, 'steps', 2)}")
    if len(sys.argv) == 4:
        draw(Table.from_rows(("arm", "step", "percent", "low", "high"), rows), Path(sys.argv[3]))


if __name__ == "__main__":
    main()
