# SPDX-License-Identifier: MIT
"""Parts of a run's units, as --shard names them; the rules of experiments/driver/shard.h."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ..capture.layer import require


@dataclass(frozen=True)
class Shard:
    """The units whose number is `index` modulo `count`."""

    index: int
    count: int

    @property
    def text(self) -> str:
        return f"{self.index}/{self.count}"


def parse_shard(value: str) -> Shard:
    """"1/4", parts counted from 0, or "slurm": the part of a task of a job array, from
    SLURM_ARRAY_TASK_ID, _MIN, _STEP and _COUNT of the environment. CaptureError with the rule."""
    if value == "slurm":
        return _slurm_shard()
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", value, re.ASCII)
    require(found and int(found[1]) < int(found[2]), f"--shard is '{value}', must be I/N with I "
            "from 0 to N - 1, or slurm")
    return Shard(int(found[1]), int(found[2]))


def _slurm(what: str) -> int:
    name = "SLURM_ARRAY_TASK_" + what
    value = os.environ.get(name)
    require(value is not None, f"--shard is slurm, but {name} is not set: must run as a task of a "
            "job array (sbatch --array)")
    require(re.fullmatch("-?[0-9]+", value, re.ASCII), f"{name} is '{value}', must be an integer")
    return int(value)


def _slurm_shard() -> Shard:
    task, first, step, count = map(_slurm, ("ID", "MIN", "STEP", "COUNT"))
    require(step > 0 and task >= first and (task - first) % step == 0
            and (task - first) // step < count, f"--shard is slurm, but SLURM_ARRAY_TASK_ID = {task} "
            f"is none of {count} numbers from {first} in steps of {step}: must be a regular --array")
    return Shard((task - first) // step, count)
