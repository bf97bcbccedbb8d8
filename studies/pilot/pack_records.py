#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Adds what run_missing.py has recorded to the records of this folder.

usage: pack_records.py RECORDS.tar RECORDS_DIR

RECORDS_DIR/runs.tar.xz has ARM/seed-S/summary.json and ARM/seed-S/curves.csv of every run, or
ARM/seed-S/diverged.json; runs.csv gets a line for each run but trunks. A run that is there already stays.
"""

import csv
import io
import sys
import tarfile
from pathlib import Path


def runs_of(archive):
    """ARM/seed-S/FILE -> bytes."""
    if not archive.exists():
        return {}
    with tarfile.open(archive) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}


def write_runs(archive, runs):
    """The same runs give the same bytes. Files of one kind are neighbours, which packs best."""
    partial = archive.with_name(archive.name + ".partial")
    with tarfile.open(partial, "w:xz", preset=9) as tar:
        for name in sorted(runs, key=lambda name: (name.split("/")[-1], name)):
            member = tarfile.TarInfo(name)
            member.size = len(runs[name])
            tar.addfile(member, io.BytesIO(runs[name]))
    partial.replace(archive)


def main():
    recorded, folder = map(Path, sys.argv[1:])
    new, lines = {}, []
    with tarfile.open(recorded) as tar:
        for member in tar:
            data = tar.extractfile(member).read()
            if member.name.count("/") == 2:
                new[member.name] = data
            else:
                lines += list(csv.reader(io.StringIO(data.decode())))[1:]
    archive = folder / "runs.tar.xz"
    write_runs(archive, new | runs_of(archive))
    times = folder / "runs.csv"
    known = list(csv.reader(io.StringIO(times.read_text()))) if times.exists() else []
    lines = [line for line in lines if line not in known and not line[0].startswith("trunk/")]
    with open(times, "a", newline="", encoding="utf-8") as table:
        csv.writer(table, lineterminator="\n").writerows(lines)
    print(f"{len(new)} files, {len(lines)} lines")


if __name__ == "__main__":
    main()
