# SPDX-License-Identifier: MIT
"""One run of `msalab evaluate` by several processes, which mpirun or srun has started or which have a
device of --devices each. Every one has a shard, in OUT/shards; who ends last merges them, so nobody
waits. They need no MPI, and share a file system that has flock."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import h5py

from ..capture.layer import CaptureError, require
from .files import Units, lock_folder, partial_folder, unit_path
from .merge import merge
from .shard import OURS, Shard, launched


@contextmanager
def one_at_a_time(out: Path):
    """Waits until no other process of the run is in here. The lock is on a file: not every file
    system has it for folders."""
    lock = out / "shards.lock"
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if not (out / "shards").exists():  # merged, or never begun
                lock.unlink(missing_ok=True)


def folder_of(out: Path, shard: Shard) -> Path:
    return out / "shards" / f"{shard.index}-of-{shard.count}"


def is_complete(out: Path, record: dict, options) -> bool:
    """Has this run been merged before? CaptureError where its place is taken."""
    found = out / "results.h5"
    if found.exists() and options.resume:
        known = json.loads(json.dumps(record))
        with h5py.File(found) as file:
            same = {name: file["run"].attrs.get(name) for name in known} == {
                name: value if isinstance(value, (str, int)) else json.dumps(value)
                for name, value in known.items()}
        require(same, f"{found}: is of another run; --overwrite replaces it")
        return True
    require(options.overwrite or not found.exists(), f"{found}: exists; --overwrite replaces it")
    partial = partial_folder(found)
    require(not partial.is_dir(), f"{partial}: one process was at this run; --resume goes on with it "
            "in one, or choose another --out")
    return False


def check_folder(out: Path, shard: Shard, options):
    """CaptureError where OUT/shards is of a run of other workers, or of one to go on with. What this
    process left there is removed with --overwrite."""
    for other in sorted((out / "shards").glob("*-of-*")):
        require(other.name.endswith(f"-of-{shard.count}"), f"{other}: the run was begun by other than "
                f"{shard.count} workers; --resume goes on with as many, or remove {out / 'shards'}")
    mine = folder_of(out, shard)
    if options.overwrite and mine.exists():
        shutil.rmtree(mine)
    require(options.resume or not mine.exists(), f"{mine}: a run was under way; --resume goes on with "
            f"it, or remove {out / 'shards'}")


def is_at_work(folder: Path) -> bool:
    """Is a process writing the units of this folder?"""
    try:
        lock_folder(partial_folder(folder / "results.h5")).close()
    except CaptureError:
        return True
    return False


def merge_where_all_are_done(out: Path, count: int, names, overwrite: bool, note) -> dict | None:
    """The summary; nothing while another process has units to do, or after it has merged them."""
    parts = [Shard(index, count) for index in range(count)]
    folders = [folder_of(out, part) for part in parts]
    with one_at_a_time(out):
        for folder, part in zip(folders, parts):
            units = partial_folder(folder / "results.h5")
            if not units.is_dir() or is_at_work(folder) or not all(
                    unit_path(units, name).exists() for name in names[part.index::count]):
                return None
        summary = merge(folders, out, overwrite, note)
        shutil.rmtree(out / "shards")
        return summary


def work(out: Path, part: Shard, options, record, plan, makers, note) -> dict | None:
    """Does this process's units, of which `makers` has all of the run by name. The summary, where it
    was the last one. CaptureError as files.Units."""
    names = list(makers)
    with one_at_a_time(out):
        if is_complete(out, record, options):
            note(f"{out / 'results.h5'}: is complete")
            return None
        check_folder(out, part, options)
        units = Units(folder_of(out, part) / "results.h5", record, plan | {"shard": part.text},
                      options.resume, False)
    with units:
        units.make_all(names[part.index::part.count], makers,
                       lambda line: note(f"process {part.text}: {line}"))
    return merge_where_all_are_done(out, part.count, names, options.overwrite, note)


def start_on_devices(options, arguments) -> int:
    """Runs this command once for each of --devices, as one run; the exit code of the first that
    fails, after the others are stopped, or 0."""
    require(not options.shard, "--shard is given, and so is --devices: one of the two spreads a run")
    require(launched() is None, "--devices is given, and so are several processes of one run: one of "
            "the two spreads it")
    require(options.device in ("cpu", "cuda"), f"--devices goes with --device cuda or cpu, not "
            f"{options.device}")
    require(len(set(options.devices)) == len(options.devices), "--devices names one twice")
    count = len(options.devices)
    processes = []
    try:
        for rank, number in enumerate(options.devices):
            device = f"cuda:{number}" if options.device == "cuda" else options.device
            threads = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // count))}
            own = {OURS[0]: str(rank), OURS[1]: str(count), "PYTHONPATH": os.pathsep.join(
                filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))}
            processes.append(subprocess.Popen(
                [sys.executable, "-m", "msalab", "evaluate", *arguments, f"--device={device}"],
                env=threads | os.environ | own))
        waiting = list(processes)
        while waiting:
            for process in waiting:
                try:
                    code = process.wait(timeout=0.05)
                except subprocess.TimeoutExpired:
                    continue
                if code != 0:
                    return code if code > 0 else 1
                waiting.remove(process)
                break
        return 0
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()
