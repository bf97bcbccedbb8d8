# SPDX-License-Identifier: MIT
"""Parts of a run's units: as --shard names them, by the rules of experiments/driver/shard.h, and of the
processes that a launcher starts together."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from ..capture.layer import require

OURS = ("MSALAB_RANK", "MSALAB_RANKS")  # of a process that start_on_devices() has started, which
                                         # has a --device of its own behind all --devices
# What launchers tell each process. SLURM_PROCID alone is set in a batch script, too.
LAUNCHERS = (OURS, ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
             ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


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


def launched() -> Shard | None:
    """This process's part of those that were started together; nothing where it is the only one."""
    for rank, count in LAUNCHERS:
        if rank in os.environ and count in os.environ:
            values = [os.environ[name] for name in (rank, count)]
            require(all(value.isascii() and value.isdigit() for value in values),
                    f"{rank} and {count} are {' and '.join(values)}, must be integers")
            index, of = map(int, values)
            require(index < of, f"{rank} is {index}, must be less than {count} = {of}")
            return Shard(index, of) if of > 1 else None
    return None
