# SPDX-License-Identifier: MIT
"""The result of the shards of a run of msalab evaluate."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ..arguments import CommandLine
from ..capture.layer import require
from ..ending import ended
from .files import require_folder
from .tables import print_tables
from .units import collect, make_results, missing_text, parts_in


def parser() -> CommandLine:
    top = CommandLine(prog="msalab merge", example="msalab merge part0 part1 --out results/whole",
                      description="What is the result of the shards of a run of msalab evaluate? What the run "
                      "itself writes without --shard, byte by byte.")
    top.add_argument("shards", nargs="+", metavar="DIR", help="the --out of each run with --shard")
    top.add_argument("--out", required=True, metavar="DIR", help="directory for the results")
    top.add_argument("--overwrite", action="store_true", help="replace existing results")
    top.add_argument("--json", action="store_true", help="print summary.json instead of the table")
    return top


def is_evaluation(shard) -> bool:
    return bool(parts_in(Path(shard)))


def merge(shards, out, overwrite: bool, note) -> dict:
    """The summary; results.h5, summary.json and pictures are in `out`. The shards stay."""
    folders, out = list(map(Path, shards)), Path(out)
    require_folder(out)
    for folder in folders:
        require(folder.is_dir(), f"{folder}: is no directory")
        require(is_evaluation(folder), f"{folder}/units: there is no run of msalab evaluate under way")
    runs, units = collect(folders)
    missing = missing_text(runs, units)
    require(not missing, f"{folders[0]} and the others: not finished in any of them: {missing}")
    require(overwrite or not (out / "results.h5").exists(),
            f"{out / 'results.h5'}: exists; --overwrite replaces it")
    out.mkdir(parents=True, exist_ok=True)
    return make_results(out, runs, units, note)


def main(arguments: list[str]) -> int:
    options = parser().parse_args(arguments)
    return ended(lambda: _work(options), options)


def _work(options):
    summary = merge(options.shards, options.out, options.overwrite, lambda line: print(line, file=sys.stderr))
    if options.json:
        print(json.dumps(summary, indent=1))
    else:
        print_tables(summary)
