# SPDX-License-Identifier: MIT
"""Work in steps, each of which is done once: a folder's steps.json says which are done, and of what."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .progress import clock_text
from .results import ResultsError

DONE = "steps.json"


@dataclass(frozen=True)
class Step:
    name: str
    what: str
    seconds: float  # an estimate, of two quiet cores
    inputs: tuple[Path, ...]
    run: Callable[[], object]
    options: tuple = ()  # with which it is the same work
    folder: Path | None = None  # in which it goes on after a stop; what it began there as other work is removed

    def key(self) -> str:
        """Of its options, and of names, sizes and times of its inputs."""
        of = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in self.inputs]
        return hashlib.sha256(json.dumps([self.name, *map(str, self.options), of]).encode()).hexdigest()


def done_steps(out: Path) -> dict[str, str]:
    try:
        found = json.loads((out / DONE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ResultsError(f"{out / DONE}: not a readable JSON file ({error})") from error
    if not isinstance(found, dict):
        raise ResultsError(f"{out / DONE}: is no JSON object")
    return found


def left(steps: Sequence[Step], out: Path) -> list[Step]:
    """From the first one on that is not done: later ones read what earlier ones write."""
    done = done_steps(out)
    for place, step in enumerate(steps):
        if done.get(step.name) != step.key():
            return list(steps[place:])
    return []


def _write(out: Path, name: str, key: str) -> None:
    part = out / f"{DONE}.partial"
    part.write_text(json.dumps({**done_steps(out), name: key}, indent=1), encoding="utf-8")
    part.replace(out / DONE)


def run(step: Step, out: Path) -> None:
    """Does a step and writes down that it is done."""
    key, begun = step.key(), f"{step.name}, begun"
    if step.folder:
        if done_steps(out).get(begun, key) != key:
            shutil.rmtree(step.folder, ignore_errors=True)
        _write(out, begun, key)
    step.run()
    _write(out, step.name, key)


def run_all(steps: Sequence[Step], out: Path, note) -> None:
    """Says first how long it takes."""
    todo = left(steps, out)
    done = len(steps) - len(todo)
    note(f"{len(todo)} steps, about {clock_text(sum(step.seconds for step in todo))} on two quiet cores"
         + (f"; {done} are done" if done else ""))
    for step in todo:
        note(f"{step.name}: {step.what}, about {clock_text(step.seconds)}")
        run(step, out)
