#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How much faster ranks of MPI are than one process, one thread each: msa-analyze of one file, in
turns. A file of fewer layers than --units is copied with its layers repeated, so that there are
that many units of work. Prints the seconds of each turn, and the ratio of the fastest ones; fails
where the results are not the same bytes. The cores must be idle otherwise.
usage: time_ranks.py FILE [--ranks 2] [--units 4] [--turns 3] [--out RECORD] [ANALYZE OPTIONS]
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import h5py

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from record import Record, spaced, texts  # noqa: E402
from record_fit import ROOT, where  # noqa: E402

from msalab.report import Shape  # noqa: E402
from msalab.results import Column  # noqa: E402

PROGRAM = ROOT / "build/release/bin/msa-analyze"
SHAPES = [Shape("runs", "runs of one file, by ranks of MPI", 1, {
    "mpi_ranks": Column("integer", "", "ranks that share the run"), "run_seconds": texts("s", "time of each turn"),
    "over_one": Column("real", "1", "least time of one rank relative to the least of these")})]
OPTIONS = ["--threads", "1", "--overwrite"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OMPI_ALLOW_RUN_AS_ROOT": "1",
               "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def with_units(file: str, units: int, folder: str) -> str:
    """The file, or a copy of it with its layers repeated under new numbers."""
    with h5py.File(file) as given:
        layers = sorted(map(int, given["layers"]))
    if len(layers) >= units:
        return file
    copy = f"{folder}/repeated.h5"
    shutil.copyfile(file, copy)
    os.chmod(copy, 0o600)
    with h5py.File(copy, "r+") as repeated:
        for number in range(len(layers), units):
            repeated.copy(f"layers/{layers[number % len(layers)]}",
                          f"layers/{layers[-1] + 1 + number}")
    return copy


def seconds_of(command: list[str]) -> float:
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ENVIRONMENT)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode}\n{done.stderr}")
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--units", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out")
    options, rest = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        file = with_units(options.file, options.units, folder)
        runs = {1: [], options.ranks: []}
        for _ in range(options.turns):
            for ranks, seconds in runs.items():
                launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
                seconds.append(seconds_of([*launcher, str(PROGRAM), file, "--out",
                                           f"{folder}/{ranks}", *OPTIONS, *rest]))
                print(f"{ranks} rank{'s' * (ranks > 1)}: {seconds[-1]:.2f} s", flush=True)
        contents = {ranks: pathlib.Path(f"{folder}/{ranks}/results.h5").read_bytes()
                    for ranks in runs}
    if contents[1] != contents[options.ranks]:
        sys.exit("results.h5 differs")
    ratio = min(runs[1]) / min(runs[options.ranks])
    print(f"{options.ranks} ranks are {ratio:.2f} times as fast as one; the results are the same bytes")
    if options.out:
        pathlib.Path(options.out).unlink(missing_ok=True)
        record = Record(options.out, "bench/time_ranks.py", "msa-analyze by ranks of MPI beside one process", SHAPES, {
            **where(PROGRAM), "units": options.units, "file": pathlib.Path(options.file).name, "options": [*OPTIONS, *rest]})
        for ranks, seconds in runs.items():
            record.put("runs", {"mpi_ranks": ranks, "run_seconds": spaced(seconds),
                                "over_one": min(runs[1]) / min(seconds)})


if __name__ == "__main__":
    main()
