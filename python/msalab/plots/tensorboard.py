# SPDX-License-Identifier: MIT
"""msalab tensorboard RUN... --out DIR: curves of msa-pretrain as TensorBoard event files.

A run is a folder with the curves.csv that msa-pretrain writes while it trains, or a folder of such
folders: a sweep, or the records of a pilot. The events are written by the package tensorboard
(pip install 'msalab[tensorboard]'). An event has the time at which its line was read, since
curves.csv has no times: compare runs by step.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path

from .pilot_records import HEADER
from .results import ResultsError


def event_file_writer():
    """tensorboard's class; ResultsError saying how to install it where it is missing."""
    try:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
    except ImportError as error:
        raise ResultsError("event files are written by the package tensorboard, which cannot be "
                           f"imported ({error}); pip install 'msalab[tensorboard]', or "
                           "pip install tensorboard") from None
    return EventFileWriter


def find_runs(folders) -> dict[str, Path]:
    """Name -> curves.csv of every run in the folders; a folder that is a run itself has its own
    name. ResultsError for a folder without any, and for two runs of one name."""
    runs: dict[str, Path] = {}
    for folder in map(Path, folders):
        found = ([folder / "curves.csv"] if (folder / "curves.csv").is_file()
                 else sorted(folder.glob("**/curves.csv")))
        if not found:
            raise ResultsError(f"{folder}: has no curves.csv; it must be a run of msa-pretrain, or "
                               "a folder of runs")
        for path in found:
            name = (path.parent.relative_to(folder) if path.parent != folder
                    else Path(path.parent.resolve().name)).as_posix()
            if name in runs:
                raise ResultsError(f"{path}: its run would be called {name}, as that of "
                                   f"{runs[name]}")
            runs[name] = path
    return runs


class Curves:
    """The lines of a curves.csv that is being written, each point once. A resumed run writes the
    file anew, with the points of its first part."""

    def __init__(self, path: Path):
        self.path = path
        self._end = 0  # bytes read, of whole lines
        self._number = 0  # of the last line read
        self._last: dict[str, int] = {}

    def new_points(self) -> list[tuple[str, int, float]]:
        """(tag, step, value) that have come since the last call. A line that is not whole yet waits;
        one that is no point is an error that names file and line."""
        with open(self.path, "rb") as file:
            if file.seek(0, 2) < self._end:  # written anew
                self._end = self._number = 0
            file.seek(self._end)
            text = file.read()
        text = text[:text.rfind(b"\n") + 1]
        self._end += len(text)
        points = []
        for row in csv.reader(text.decode("utf-8").splitlines()):
            self._number += 1
            if self._number == 1:
                if row != HEADER:
                    raise ResultsError(f"{self.path}: line 1 must be {','.join(HEADER)}")
                continue
            try:
                step, group, name, part, value = row
                tag, at, number = "/".join(filter(None, (group, name, part))), int(step), float(value)
            except ValueError:
                raise ResultsError(f"{self.path}: line {self._number} must be {','.join(HEADER)}, "
                                   f"not {','.join(row)!r}") from None
            if at > self._last.get(tag, -1):
                self._last[tag] = at
                points.append((tag, at, number))
        return points


class Events:
    """The event file of a run, which is made with its first point."""

    def __init__(self, folder: Path, writer):
        self.folder, self._make, self._writer = folder, writer, None
        if any(folder.glob("*tfevents*")):
            raise ResultsError(f"{folder}: has event files already, which TensorBoard would show "
                               "together with new ones; name another --out, or delete them")

    def write(self, points) -> int:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        if points and self._writer is None:
            self._writer = self._make(str(self.folder))
        for tag, step, value in points:
            summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
            self._writer.add_event(Event(step=step, wall_time=time.time(), summary=summary))
        if points:
            self._writer.flush()
        return len(points)

    def close(self):
        if self._writer is not None:
            self._writer.close()


def convert(runs: dict[str, Path], out: Path, every: float | None = None) -> dict[str, int]:
    """Points written of each run. With `every`, looks again after so many seconds until interrupted."""
    writer = event_file_writer()
    open_runs = {name: (Curves(path), Events(out / name, writer)) for name, path in runs.items()}
    written = dict.fromkeys(runs, 0)
    try:
        while True:
            for name, (curves, events) in open_runs.items():
                written[name] += events.write(curves.new_points())
            if every is None:
                break
            time.sleep(every)
    except KeyboardInterrupt:
        pass
    finally:
        for _, events in open_runs.values():
            events.close()
    return written


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(
        prog="msalab tensorboard", description="Writes the curves of runs of msa-pretrain as "
        "TensorBoard event files; tensorboard --logdir DIR shows them. Compare by step: the events "
        "have the time at which they were read.")
    parser.add_argument("runs", nargs="+", metavar="RUN",
                        help="folder with curves.csv, or a folder of such folders")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the event files")
    parser.add_argument("--follow", action="store_true",
                        help="go on while the runs do, until interrupted")
    parser.add_argument("--every", type=float, default=2, metavar="SECONDS",
                        help="between looks with --follow (default: 2)")
    options = parser.parse_args(arguments)
    try:
        if options.every <= 0:
            raise ResultsError(f"--every is {options.every:g}, must be positive")
        written = convert(find_runs(options.runs), Path(options.out),
                          options.every if options.follow else None)
    except (ResultsError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for name, points in written.items():
        print(f"{name}: {points} points")
    return 0
