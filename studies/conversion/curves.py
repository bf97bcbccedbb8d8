#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How far behind the dense arm is an arm of studies/conversion/gpu.sh while both train? They read the same tokens in the same
order, so the difference of a step's losses is that of the arms. Until the text begins again, the loss of a step is one
on text that the model has not seen.

usage: curves.py RECORDS SEED,... [OUT]   (PYTHONPATH=python; RECORDS: folder of ARM-seed-SEED.tar.xz; OUT: folder of
the picture)

The losses of a step are averaged over the seeds that an arm has. So are, over the layers too, KL, recall and entropy
of the Index Branches on the way (fig:training-dynamics-cpt).
"""

import csv
import io
import sys
import tarfile
from pathlib import Path

import numpy as np

from msalab.evaluation.intervals import FEWEST, interval_text, ratio_interval
from msalab.plots import style
from msalab.table import Table

STRETCH = 20  # steps of a row of the table and of a point of the picture
PROBED = ("block_recall", "score_recall", "mass_kept", "oracle_mass", "entropy_dense", "entropy_sparse")


def means(curves) -> dict[str, dict[int, float]]:
    """Name -> step -> value, the mean over layers."""
    found = {}
    for row in csv.DictReader(curves):
        found.setdefault(row["name"], {}).setdefault(int(row["step"]), []).append(float(row["value"]))
    return {name: {step: float(np.mean(values)) for step, values in own.items()} for name, own in found.items()}


def read(folder: Path, seed: str) -> dict[str, dict]:
    """Arm -> its means."""
    end, found = f"-seed-{seed}.tar.xz", {}
    for path in sorted(folder.glob(f"*{end}")):
        with tarfile.open(path) as tar:
            found[path.name.removesuffix(end)] = means(io.TextIOWrapper(tar.extractfile("curves.csv")))
    return found


def behind(pairs: list) -> dict[int, dict]:
    """pairs: (losses of an arm, those of dense) of each seed. First step of a stretch -> the difference as a share of
    the dense loss; steps are drawn with replacement."""
    steps = sorted(set.intersection(*(set(curve) for pair in pairs for curve in pair)))
    arm, dense = ({step: np.mean([curve[step] for curve in curves]) for step in steps} for curves in zip(*pairs))
    return {first: ratio_interval([arm[step] - dense[step] for step in own], [dense[step] for step in own], 0)
            for first in range(0, len(steps), STRETCH) if len(own := steps[first:first + STRETCH]) >= FEWEST}


@style.styled
def draw(table: Table, out: Path):
    figure = style.new_figure(3)
    axes = figure.subplots()
    owns = {arm: table.where(arm=arm) for arm in sorted(set(table["arm"]))}
    lines = {arm: own for arm, own in owns.items() if len(own["step"]) > 1}
    for place, (arm, own) in enumerate(lines.items()):
        whiskers = (own["percent"] - own["low"], own["high"] - own["percent"])
        axes.errorbar(own["step"] + STRETCH / 2, own["percent"], whiskers, label=arm, capsize=2, **style.series_style(place))
    axes.axhline(0.5, color=style.GUIDE, linestyle=":", label="near-lossless: less")
    axes.set(xlabel="step of 131K tokens", ylabel="loss above dense, %", ylim=(0, None))
    figure.legend(loc="outside upper center", ncols=2)
    style.save(figure, table, out, "conversion_curves")


def dynamics(runs: list) -> Table:
    """name, step and value of the Index Branches of these runs of an arm, which differ in their seeds."""
    names = ("kl_loss", *PROBED)
    return Table.from_rows(("name", "step", "value"), [
        (name, step, np.mean([run[name][step] for run in runs])) for name in names for step in runs[0][name]])


PANELS = (
    ("KL, nats", "(a) KL, in the warm-up over all keys, then over the selected blocks", {"kl_loss": "-"}),
    ("share", "(b) mass kept, by the oracle's blocks (dashed); block recall (dotted)",
     {"mass_kept": "-", "oracle_mass": "--", "block_recall": ":"}),
    ("nats", "(c) entropy of dense attention; over the selected blocks (dashed)",
     {"entropy_dense": "-", "entropy_sparse": "--"}),
)


@style.styled
def draw_dynamics(of: dict[str, Table], out: Path):
    figure = style.new_figure(6)
    panels = figure.subplots(len(PANELS), 1, sharex=True)
    for axes, (label, title, lines) in zip(panels, PANELS):
        for place, (arm, table) in enumerate(of.items()):
            for name, line in lines.items():
                own = table.where(name=name)
                axes.plot(own["step"], own["value"], linestyle=line, color=style.series_style(place)["color"],
                          label=arm if line == "-" else None, linewidth=1.2)
        axes.set(ylabel=label)
        axes.set_title(title, loc="left", fontsize=9)
    panels[0].set_ylim(bottom=0)
    panels[-1].set_xlabel("step")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper center", ncols=2)
    rows = [(arm, *row) for arm, table in of.items() for row in zip(*(table[name] for name in ("name", "step", "value")))]
    style.save(figure, Table.from_rows(("arm", "name", "step", "value"), rows), out, "conversion_dynamics")


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    pairs, learned = {}, {}
    for seed in sys.argv[2].split(","):
        runs = read(Path(sys.argv[1]), seed)
        if "dense" not in runs:
            sys.exit(f"{sys.argv[1]}: has no dense-seed-{seed}.tar.xz")
        dense = runs.pop("dense")
        runs.pop("fitted", None)  # its model is not trained, like that of the MSA arms in their warm-up
        for arm, run in runs.items():
            pairs.setdefault(arm, []).append((run["loss"], dense["loss"]))
            if {"kl_loss", *PROBED} <= run.keys():
                learned.setdefault(arm, []).append(run)
    rows = []
    for arm, own in sorted(pairs.items()):
        for first, one in behind(own).items():
            percent = {name: 100 * one[name] for name in ("mean", "low", "high")} | {"units": one["units"]}
            rows.append([arm, first, *[*percent.values()][:3]])
            print(f"{arm}, seeds: {len(own)}, steps {first} to {first + one['units'] - 1}: {percent['mean']:+.2f} %, "
                  f"95 %: {interval_text(percent, 'steps', 2)}")
    tables = {arm: dynamics(own) for arm, own in learned.items()}
    for arm, table in tables.items():
        for step in table.where(name=PROBED[0])["step"]:
            here = {name: float(table.where(name=name, step=step)["value"][0]) for name in ("kl_loss", *PROBED)}
            print(f"{arm}, step {step}: {', '.join(f'{name} {value:.3f}' for name, value in here.items())}")
    if len(sys.argv) == 4:
        if tables:
            draw_dynamics(tables, Path(sys.argv[3]))
        draw(Table.from_rows(("arm", "step", "percent", "low", "high"), rows), Path(sys.argv[3]))


if __name__ == "__main__":
    main()
