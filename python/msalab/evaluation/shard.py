# SPDX-License-Identifier: MIT
"""Parts of a run's units: as --shard names them, by the rules of experiments/driver/shard.h, and of the
processes that mpirun, srun or --devices start together."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from ..capture.layer import require

# What launchers tell each process. SLURM_PROCID alone is set in a batch script, too.
LAUNCHERS = (("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE"),
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


def start_on_devices(options, arguments) -> int:
    """A shard on each of --devices; the first exit code that is not 0, which ends the others, or 0.
    CaptureError where the options do not allow it."""
    require(options.shard is None, "--shard is given, and so is --devices: one of the two spreads a run")
    require(launched() is None, "--devices is given, and so are several processes of one run: one of "
            "the two spreads it")
    require(options.device in ("cpu", "cuda"), f"--devices goes with --device cuda or cpu, not "
            f"{options.device}")
    require(len(set(options.devices)) == len(options.devices), "--devices names one twice")
    count = len(options.devices)
    environment = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // count))} | os.environ
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
    processes = []
    try:
        for index, number in enumerate(options.devices):
            device = f"cuda:{number}" if options.device == "cuda" else options.device
            processes.append(subprocess.Popen(
                [sys.executable, "-m", "msalab", "evaluate", *arguments, "--devices=",
                 f"--shard={index}/{count}", f"--device={device}"], env=environment))
        codes = [None]
        while None in codes and not any(codes):
            codes = [process.poll() for process in processes]
            time.sleep(0.05)
        failed = [code for code in codes if code]
        return 0 if not failed else failed[0] if failed[0] > 0 else 1
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
