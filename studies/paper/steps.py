# SPDX-License-Identifier: MIT
"""What `msalab paper` does: programs on the sample, and pictures of the sample and of the records. Each step is done
once: what is done is written down, with what it was done of."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from msalab.plots import FitResults, Results, roofline, save, selection_heat_map, sink_bars, training_curves
from msalab.results import ResultsError

from ..pilot import answers, figures
from .measured import Numbers, Tree, efficiency_picture, run_script

DONE = "steps.json"
SIZES = ("--block-size", "32", "--top-k", "8")
FIT = (*SIZES, "--steps", "100", "--warmup-steps", "10", "--lr", "5e-4", "--eval-every", "10", "--train", ":1024",
       "--eval", "1024:")
LAYERS = (10, 20)  # of data/sample.h5


@dataclass(frozen=True)
class Step:
    name: str
    what: str
    seconds: float  # of two quiet cores
    inputs: tuple[Path, ...]
    run: Callable[[], Iterator[str] | None]  # gives the names of pictures


def _program(tree: Tree, name: str, *words) -> None:
    done = subprocess.run([tree.program(name), *map(str, words), "--resume"], stdout=subprocess.DEVNULL)
    if done.returncode:
        raise ResultsError(f"{name} ended with exit code {done.returncode}; its message is above")


def _sample_pictures(out: Path, pictures: Path) -> Iterator[str]:
    with FitResults(out / "fit/results.h5") as fit:
        yield _saved(pictures, f"training_layer{LAYERS[-1]}", training_curves(fit, LAYERS[-1]))
    with Results(out / "all/results.h5") as results:
        for layer in LAYERS:
            yield _saved(pictures, f"selection_index_layer{layer}", selection_heat_map(results, "index", layer))
        yield _saved(pictures, "sink_index", sink_bars(results, "index", list(LAYERS)))


def _saved(folder: Path, name: str, drawn) -> str:
    save(*drawn, folder, name)
    return name


def _pilot_pictures(numbers: Numbers, pictures: Path) -> Iterator[str]:
    pair = {arm: numbers.records[arm] for arm in ("full", "msa")}
    yield _saved(pictures, "pilot_loss", figures.training_loss(pair))
    yield _saved(pictures, "pilot_gradient", figures.gradient_norms(pair))
    for name, drawn in answers.pictures(numbers.records, numbers.before):
        yield _saved(pictures, name, drawn)


def _cost_pictures(tree: Tree, numbers: Numbers, pictures: Path) -> Iterator[str]:
    yield _saved(pictures, "efficiency", efficiency_picture(tree, numbers.cost))
    yield _saved(pictures, "roofline", roofline(numbers.cost))


def _conversion_pictures(tree: Tree, pictures: Path) -> Iterator[str]:
    run_script(tree, "curves.py", tree.studies / "conversion/records/large", "1,2,3", pictures)
    yield from ("conversion_curves", "conversion_dynamics")


def steps_of(tree: Tree, numbers: Numbers, out: Path) -> list[Step]:
    sample, pictures = tree.data / "sample.h5", out / "pictures"
    pilot = tuple(tree.studies / "pilot" / name / "runs.tar.xz" for name in ("records", "records_2"))
    bench = tuple(sorted((tree.data / "bench").glob("cuda-h100*.json")))
    fitted = out / "fit/indexer.h5"
    return [
        Step("fit", "an Index Branch, fitted to two layers of SmolLM2", 20, (sample,),
             lambda: _program(tree, "msa-fit-indexer", sample, "--out", out / "fit", *FIT)),
        Step("analyze", "what it selects there", 2, (sample,),
             lambda: _program(tree, "msa-analyze", fitted, "--out", out / "all", *SIZES, "--selectors",
                              "index,oracle")),
        Step("sample", "pictures of both", 5, (sample,), lambda: _sample_pictures(out, pictures)),
        Step("cost", "pictures of costs and speed-ups", 3, bench, lambda: _cost_pictures(tree, numbers, pictures)),
        Step("pilot", "pictures of the pilot", 10, pilot, lambda: _pilot_pictures(numbers, pictures)),
        Step("conversion", "pictures of the conversion", 4,
             tuple(sorted((tree.studies / "conversion/records/large").glob("*.tar.xz"))),
             lambda: _conversion_pictures(tree, pictures)),
    ]


def _key(step: Step) -> str:
    """Of what a step reads: names, sizes and times of its inputs."""
    of = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in step.inputs]
    return hashlib.sha256(json.dumps([step.name, SIZES, FIT, of]).encode()).hexdigest()


def done_steps(out: Path) -> dict[str, str]:
    try:
        found = json.loads((out / DONE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ResultsError(f"{out / DONE}: not a readable JSON file ({error})") from error
    return found if isinstance(found, dict) else {}


def left(steps: list[Step], out: Path) -> list[Step]:
    done = done_steps(out)
    return [step for step in steps if done.get(step.name) != _key(step)]


def run(step: Step, out: Path) -> None:
    """Does a step and writes down that it is done."""
    for _ in step.run() or ():
        pass
    part = out / f"{DONE}.partial"
    part.write_text(json.dumps({**done_steps(out), step.name: _key(step)}, indent=1), encoding="utf-8")
    part.replace(out / DONE)
