# SPDX-License-Identifier: MIT
"""What `msalab paper` does: programs on the sample, and pictures of the sample and of the records."""

from __future__ import annotations

import subprocess
from pathlib import Path

from msalab.demo import FIT, SIZES
from msalab.plots import FitResults, Results, roofline, save, selection_heat_map, sink_bars, training_curves
from msalab.results import ResultsError
from msalab.steps import Step

from ..pilot import answers, figures
from .measured import Numbers, Tree, efficiency_picture, run_script

LAYERS = (10, 20)  # of data/sample.h5


def _program(tree: Tree, name: str, *words) -> None:
    done = subprocess.run([tree.program(name), *map(str, words)], stdout=subprocess.DEVNULL)
    if done.returncode:
        raise ResultsError(f"{name} ended with exit code {done.returncode}; its message is above")


def _sample_pictures(out: Path, pictures: Path) -> None:
    with FitResults(out / "fit/results.h5") as fit:
        _save(pictures, f"training_layer{LAYERS[-1]}", training_curves(fit, LAYERS[-1]))
    with Results(out / "all/results.h5") as results:
        for layer in LAYERS:
            _save(pictures, f"selection_index_layer{layer}", selection_heat_map(results, "index", layer))
        _save(pictures, "sink_index", sink_bars(results, "index", list(LAYERS)))


def _save(folder: Path, name: str, drawn) -> None:
    save(*drawn, folder, name)


def _pilot_pictures(numbers: Numbers, pictures: Path) -> None:
    pair = {arm: numbers.records[arm] for arm in ("full", "msa")}
    _save(pictures, "pilot_loss", figures.training_loss(pair))
    _save(pictures, "pilot_gradient", figures.gradient_norms(pair))
    for name, drawn in answers.pictures(numbers.records, numbers.before):
        _save(pictures, name, drawn)


def _cost_pictures(tree: Tree, numbers: Numbers, pictures: Path) -> None:
    _save(pictures, "efficiency", efficiency_picture(tree, numbers.cost))
    _save(pictures, "roofline", roofline(numbers.cost))


def _conversion_pictures(tree: Tree, pictures: Path) -> None:
    run_script(tree, "curves.py", tree.studies / "conversion/records/large", "1,2,3", pictures)


def steps_of(tree: Tree, numbers: Numbers, out: Path) -> list[Step]:
    sample, pictures = tree.data / "sample.h5", out / "pictures"
    pilot = tuple(tree.studies / "pilot" / name / "runs.tar.xz" for name in ("records", "records_2"))
    bench = tuple(sorted((tree.data / "bench").glob("cuda-h100*.json")))
    fitted = out / "fit/indexer.h5"
    return [
        Step("fit", "an Index Branch, fitted to two layers of SmolLM2", 20, (sample,),
             lambda: _program(tree, "msa-fit-indexer", sample, "--out", out / "fit", *FIT), FIT),
        Step("analyze", "what it selects there", 2, (sample,),
             lambda: _program(tree, "msa-analyze", fitted, "--out", out / "all", *SIZES, "--selectors",
                              "index,oracle"), SIZES),
        Step("sample", "pictures of both", 5, (sample,), lambda: _sample_pictures(out, pictures)),
        Step("cost", "pictures of costs and speed-ups", 3, bench, lambda: _cost_pictures(tree, numbers, pictures)),
        Step("pilot", "pictures of the pilot", 10, pilot, lambda: _pilot_pictures(numbers, pictures)),
        Step("conversion", "pictures of the conversion", 4,
             tuple(sorted((tree.studies / "conversion/records/large").glob("*.tar.xz"))),
             lambda: _conversion_pictures(tree, pictures)),
    ]
