# SPDX-License-Identifier: MIT
"""The result of the shards of a run: of msalab evaluate here, of a program by msa-merge."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from ..capture.layer import CaptureError, require
from .__main__ import print_tables
from .files import lock_folder, partial_folder, read_json, read_unit, same_or_refused, unit_path
from .results import complete, unit_names

NAMED = 3  # missing units of a shard that a message names


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="msalab merge", description="What is the result of the "
                                  "shards of a run? What the run itself writes without --shard, byte "
                                  "by byte. Shards of a program are joined by msa-merge.")
    top.add_argument("shards", nargs="+", metavar="DIR", help="the --out of each run with --shard")
    top.add_argument("--out", required=True, metavar="DIR", help="directory for the results")
    top.add_argument("--overwrite", action="store_true", help="replace results that exist")
    top.add_argument("--json", action="store_true", help="print summary.json instead of the table")
    return top


def _folder(shard) -> Path:
    return partial_folder(Path(shard) / "results.h5")


def is_evaluation(shard) -> bool:
    return (_folder(shard) / "plan.json").exists()


def _open(shards, out) -> list[tuple[dict, dict]]:
    """Record and plan of each. CaptureError where one is none, or is of another run."""
    found, known = [], set()
    for shard in map(Path, shards):
        require(shard.is_dir(), f"{shard}: is no directory")
        require(not (shard / "results.h5").exists(), f"{shard}: holds the results.h5 of a whole run, "
                "it is no shard")
        require(shard.resolve() not in known, f"{shard}: is named twice")
        known.add(shard.resolve())
        require(Path(out).resolve() != shard.resolve(), f"{shard}: is a shard; choose another --out")
        folder = _folder(shard)
        require(is_evaluation(shard), f"{folder}: there is no run of msalab evaluate under way")
        lock_folder(folder).close()
        found.append((read_json(folder / "run.json"), read_json(folder / "plan.json")))
        same_or_refused(f"{shard} (against {shards[0]})", found[0][0], found[-1][0],
                        "; it is of another run")
    return found


def _find_units(shards, found) -> dict[str, Path]:
    """The file of each unit. CaptureError naming the units that are in no shard with the shard that
    owes them, or the first that is in two."""
    record, plan = found[0]
    names, at = unit_names(record, plan), {}
    for shard in shards:
        for name in names:
            path = unit_path(_folder(shard), name)
            if path.exists():
                require(name not in at, f"{at.get(name, path).parents[1]} and {shard}: both hold "
                        f"{name}")
                at[name] = path
    count = max(int((one["shard"] or "0/1").partition("/")[2]) for _, one in found)
    missing: dict[int, list[str]] = {}
    for number, name in enumerate(names):
        if name not in at:
            missing.setdefault(number % count, []).append(name)
    owed = [", ".join(some[:NAMED]) + (f" and {len(some) - NAMED} more" if len(some) > NAMED else "")
            + f" (of --shard {index}/{count})" for index, some in sorted(missing.items())]
    require(not owed, f"{shards[0]} and the others: not finished in any of them: {'; '.join(owed)}")
    return at


def merge(shards, out, overwrite: bool, note) -> dict:
    """The summary; results.h5, summary.json and pictures are in `out`. The shards stay."""
    found = _open(shards, out)
    at = _find_units(shards, found)
    out = Path(out)
    whole = out / "results.h5"
    require(overwrite or not whole.exists(), f"{whole}: exists; --overwrite replaces it")
    require(not partial_folder(whole).is_dir(), f"{partial_folder(whole)}: a run is under way there; "
            "choose another --out")
    devices = list(dict.fromkeys(plan["device"] for _, plan in found))
    if len(devices) > 1:
        note(f"note: the shards ran on several devices: {'; '.join(devices)}. Where these are of one "
             "kind, so are the last bits of their numbers")
    out.mkdir(parents=True, exist_ok=True)
    return complete(whole, out, *found[0], lambda name: read_unit(at[name]))


def main(arguments: list[str], program: Path | None = None) -> int:
    """program: msa-merge, where it is installed; it takes what names no shard of an evaluation."""
    asks_help = bool({"-h", "--help"} & set(arguments))
    if program is not None and not asks_help and not any(map(is_evaluation, arguments)):
        os.execv(program, [str(program), *arguments])
    options = parser().parse_args(arguments)
    try:
        summary = merge(options.shards, options.out, options.overwrite,
                        lambda line: print(line, file=sys.stderr))
    except (CaptureError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(summary, indent=1))
    else:
        print_tables(summary)
    return 0
