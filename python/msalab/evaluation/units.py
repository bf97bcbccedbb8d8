# SPDX-License-Identifier: MIT
"""The units of a run of `msalab evaluate`, as lines of JSON. Part I of N has its own in
OUT/units/I-of-N.jsonl, with the run in the first line. Who ends last makes the results of all lines, so
nobody waits: parts need no MPI, only a file system that has flock."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import zlib
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from .. import hdf5
from ..capture.layer import CaptureError, require
from .files import read_json, same_or_refused, verify_checksum
from .results import FORMAT, VERSION, complete, unit_names
from .shard import Shard

CHECK = ', "crc32": '  # of the line without it
PARTS = {"configs", "differences", "first_block", "sensitivity", "retrieval_total", "resampled"}  # that are printed
NAMED = 3  # missing units of a shard that a message names


def _line(content: dict) -> bytes:
    text = json.dumps(content)
    return f"{text[:-1]}{CHECK}{zlib.crc32(text.encode())}}}\n".encode()


def _content(path, number: int, line: bytes) -> dict:
    text, _, check = line.decode("utf-8", "replace").rpartition(CHECK)
    text += "}"
    require(check == f"{zlib.crc32(text.encode())}}}\n", f"{path}: line {number} does not match its "
            "checksum; remove it, and --resume makes it anew")
    return json.loads(text)


def _arrays(unit: dict) -> dict:
    return {name: np.array(one["values"], one["dtype"]) for name, one in unit["arrays"].items()}


def parts_in(out: Path) -> list[Path]:
    return sorted((out / "units").glob("*-of-*.jsonl"))


def read_part(path: Path) -> tuple[dict, dict]:
    """The run and the arrays of each unit. A last line without end, of one who was killed, counts for
    nothing. CaptureError naming a line that has changed."""
    with open(path, "rb") as file:
        lines = [_content(path, number, line) for number, line in enumerate(file, 1)
                 if line.endswith(b"\n")]
    require(lines, f"{path}: has no line; remove it")
    run = lines[0]
    try:
        require(all(isinstance(run[name], dict) for name in ("record", "plan")) and isinstance(run["count"], int),
                f"{path}: line 1 is no run of msalab evaluate; remove it")
        return run, {unit["unit"]: _arrays(unit) for unit in lines[1:]}
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CaptureError(f"{path}: is not of msalab evaluate ({type(error).__name__}: {error}); remove it, and "
                           "--resume makes its units anew") from error


def collect(folders) -> tuple[list[dict], dict]:
    """The runs of all parts in these folders, which are one, and the units that are done."""
    paths = [path for folder in folders for path in parts_in(folder)]
    runs, units = [], {}
    for path in paths:
        run, some = read_part(path)
        runs.append(run)
        same_or_refused(f"{path} (against {paths[0]})", runs[0]["record"], run["record"],
                        "; it is of another run")
        units |= some
    return runs, units


def missing_text(runs, units) -> str:
    """Units that nobody has done, with the shard that owes them; empty where there are none."""
    count = max(run["count"] for run in runs)
    missing: dict[int, list[str]] = {}
    for number, name in enumerate(unit_names(runs[0]["record"], runs[0]["plan"])):
        if name not in units:
            missing.setdefault(number % count, []).append(name)
    return "; ".join(", ".join(some[:NAMED]) + (f" and {len(some) - NAMED} more" if len(some) > NAMED
                     else "") + f" (of --shard {index}/{count})"
                     for index, some in sorted(missing.items()))


def make_results(out: Path, runs, units, note) -> dict:
    """results.h5, summary.json and pictures in `out`; returns the summary."""
    devices = list(dict.fromkeys(run["plan"]["device"] for run in runs))
    if len(devices) > 1:
        note(f"note: the shards ran on several devices: {'; '.join(devices)}. Where these are of one "
             "kind, so are the last bits of their numbers")
    try:
        return complete(out, runs[0]["record"], runs[0]["plan"], units.__getitem__)
    except (KeyError, TypeError) as error:
        raise CaptureError(f"{out}: its units are not of this run ({type(error).__name__}: {error}); --overwrite begins "
                           "anew") from error


@contextmanager
def _one_at_a_time(out: Path):
    """Waits until no other part of the run is in here. The lock is on a file: not every file system
    has it for folders."""
    (out / "units").mkdir(parents=True, exist_ok=True)
    with open(out / "units/lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if not parts_in(out):
                shutil.rmtree(out / "units", ignore_errors=True)


def _is_under_way(out: Path, record: dict) -> bool:
    """Are units of this run there? They go when all else is written."""
    return any(_has_units(path) and read_part(path)[0]["record"] == record for path in parts_in(out))


def _is_complete(out: Path, record: dict, options) -> bool:
    """Are the results of this run there? CaptureError where others are, and nobody replaces them."""
    results = out / "results.h5"
    if results.exists() and options.resume:
        if _is_under_way(out, record):
            return False
        verify_checksum(results)
        try:
            with h5py.File(results) as file:
                run = hdf5.checked(file["run"], file, f"{results}: /run", CaptureError)
                found = {name: run.attrs.get(name) for name in record}
        except (OSError, KeyError, RuntimeError, ValueError) as error:
            raise CaptureError(f"{results}: is no result of msalab evaluate ({error}); --overwrite replaces it"
                               ) from error
        require(found == {name: value if isinstance(value, (str, int)) else json.dumps(value)
                          for name, value in record.items()},
                f"{results}: is of another run; --overwrite replaces it")
        return True
    require(options.overwrite or not results.exists(), f"{results}: exists; --overwrite replaces it")
    return False


def _summary_of(path: Path) -> dict:
    require(path.is_file(), f"{path}: no such file; --overwrite begins anew")
    summary = read_json(path)
    known = isinstance(summary, dict) and (summary.get("format"), summary.get("format_version")) == (FORMAT, VERSION)
    require(known and PARTS <= summary.keys(), f"{path}: is not the summary of this run; --overwrite begins anew")
    return summary


def _has_units(path: Path) -> bool:
    return path.read_bytes().count(b"\n") > 1  # behind the line of the run


def _require_same(path: Path, known: dict, run: dict) -> None:
    same_or_refused(str(path), known["record"], run["record"],
                    "; --resume goes on with the same run alone, --overwrite begins anew")


def _is_held(path: Path) -> bool:
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _beside(path: Path, run: dict, options) -> tuple[list[Path], set]:
    """The other parts that are in the way, and the units of the rest. In the way are parts without
    units and, with --overwrite, those of another run. CaptureError where a part of another run is not."""
    in_the_way, units = [], set()
    for other in parts_in(path.parents[1]):
        if other == path:
            continue
        held = _is_held(other)
        if not held and not _has_units(other):
            in_the_way.append(other)
            continue
        known, some = read_part(other)
        if options.overwrite and known["record"] != run["record"]:
            require(not held, f"{other}: another process is writing it")
            in_the_way.append(other)
            continue
        _require_same(other, known, run)
        units |= some.keys()
    return in_the_way, units


def _begin(path: Path, run: dict, options):
    """The file to write a part's units into, and the names of those that are done. CaptureError where
    it is not ours to write, or another part is of another run; then all files are as before."""
    in_the_way, done = _beside(path, run, options)
    file = open(path, "ab", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        has_units = _has_units(path)
        require(options.resume or options.overwrite or not has_units, f"{path}: a run was under way; "
                "--resume goes on with it, --overwrite begins anew")
        if options.resume and has_units:
            known, units = read_part(path)
            _require_same(path, known, run)
            done |= units.keys()
            file.truncate(path.read_bytes().rfind(b"\n") + 1)  # of one who was killed
        else:
            file.truncate(0)
            _append(file, path, run)
        for other in in_the_way:
            other.unlink()
        return file, done if options.resume else set()
    except BlockingIOError:
        file.close()
        require(False, f"{path}: another process is writing it")
    except BaseException:
        file.close()
        raise


def _append(file, path: Path, content: dict):
    """A line, on the device when this returns. CaptureError where it cannot be written."""
    try:
        rest = memoryview(_line(content))
        while rest:
            rest = rest[file.write(rest):]
        os.fsync(file.fileno())
    except OSError as error:  # which names no file
        raise CaptureError(f"{path}: {error.strerror}; --resume goes on when there is room") from error


def work(out: Path, part: Shard, options, record, plan, makers, note, watch=None) -> dict | None:
    """Does a part's units, of which `makers` has all of the run by name, but those that are done. The
    summary, where these were the last ones; of a run that is complete, the first part has it.
    watch.begin(names) is told which ones it will make, watch.left() says how long that takes."""
    run = json.loads(json.dumps({"record": record, "plan": plan, "count": part.count}))
    names, path = list(makers), out / "units" / f"{part.index}-of-{part.count}.jsonl"
    with _one_at_a_time(out):
        if _is_complete(out, run["record"], options):
            note(f"{out / 'results.h5'}: is complete")
            return _summary_of(out / "summary.json") if part.index == 0 else None
        file, done = _begin(path, run, options)
    with file:
        mine = names[part.index::part.count]
        if watch is not None:
            watch.begin([name for name in mine if name not in done])
        for number, name in enumerate(mine, 1):
            note(f"{f'shard {part.text}: ' if part.count > 1 else ''}{number}/{len(mine)}: {name}"
                 f"{watch.left() if watch is not None else ''}")
            if name in done:
                continue
            arrays = {key: np.asarray(values) for key, values in makers[name]().items()}
            _append(file, path, {"unit": name, "arrays": {
                key: {"dtype": str(one.dtype), "values": one.tolist()} for key, one in arrays.items()}})
    with _one_at_a_time(out):
        if not parts_in(out):  # another one was as late, and has made the results
            return None
        runs, units = collect([out])
        if missing_text(runs, units):
            note(f"shard {part.text}: its {len(mine)} of the run's {len(names)} units are in {out}; "
                 "who ends last there makes the results, of several folders msalab merge does")
            return None
        summary = make_results(out, runs, units, note)
        shutil.rmtree(out / "units")
        return summary
