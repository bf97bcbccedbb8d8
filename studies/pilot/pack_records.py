#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Adds finished runs to the records of this folder.

usage: pack_records.py RUNS.tar RECORDS_DIR

RUNS.tar has ARM/seed-S/summary.json and ARM/seed-S/curves.csv of runs, or ARM/seed-S/diverged.json, as gpu.sh packs
them. RECORDS_DIR/runs.tar.xz gets those of runs that have ended, but for trunks, without what no record needs. A run
that is there already stays.
"""

import io
import lzma
import re
import sys
import tarfile
from pathlib import Path

# Entries of the curves that no record needs: the same in all runs, of the machine, or, of the KL loss of every layer,
# in the probes.
LEFT_OUT = re.compile(rb",(learning_rate|lr|mfu|tokens_per_second|kl_loss),")

# Numbers as text, of which no byte has a place of its own in a word.
TEXT = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "pb": 0, "lc": 4, "dict_size": 1 << 26}]


def runs_of(archive):
    """ARM/seed-S/FILE -> bytes."""
    if not archive.exists():
        return {}
    with tarfile.open(archive) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}


def records_of(runs):
    """The same of the runs that have ended, as records have them."""
    records = {}
    for run in {name.rpartition("/")[0] for name in runs if not name.startswith("trunk/")}:
        diverged, *names = (f"{run}/{name}" for name in ("diverged.json", "summary.json", "curves.csv"))
        if diverged in runs:
            records[diverged] = runs[diverged]
        elif all(name in runs for name in names):
            records |= {name: runs[name] for name in names}
    for name in records:
        if name.endswith(".csv"):
            lines = records[name].splitlines(keepends=True)
            records[name] = b"".join(line for line in lines if not LEFT_OUT.search(line))
    return records


def write_runs(archive, runs):
    """The same runs give the same bytes. Files of one kind are neighbours, which packs best."""
    partial = archive.with_name(archive.name + ".partial")
    with lzma.open(partial, "wb", filters=TEXT) as file, tarfile.open(fileobj=file, mode="w") as tar:
        for name in sorted(runs, key=lambda name: (name.split("/")[-1], name)):
            member = tarfile.TarInfo(name)
            member.size = len(runs[name])
            tar.addfile(member, io.BytesIO(runs[name]))
    partial.replace(archive)


def main():
    packed, folder = map(Path, sys.argv[1:])
    archive = folder / "runs.tar.xz"
    known, new = runs_of(archive), records_of(runs_of(packed))
    write_runs(archive, new | known)
    print(f"{len(new.keys() - known.keys())} new files")


if __name__ == "__main__":
    main()
