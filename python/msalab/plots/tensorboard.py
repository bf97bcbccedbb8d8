# SPDX-License-Identifier: MIT
"""msalab tensorboard RUN... --out DIR: curves of msa-pretrain as TensorBoard event files.

A run is a folder with the curves.csv of msa-pretrain, or a folder of such folders, as a sweep makes
them. The events are written by the package tensorboard (pip install 'msalab[tensorboard]'). An event
has the time at which its line was read, since curves.csv has no times: compare runs by step.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from ..ending import ended
from .pilot_records import read_points
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
        found = list(folder.glob("curves.csv")) or sorted(folder.glob("**/curves.csv"))
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


def write_events(points, folder: Path, writer) -> int:
    """The event file of a run; the number of points."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    if any(folder.glob("*tfevents*")):
        raise ResultsError(f"{folder}: has event files already, which TensorBoard would show "
                           "together with new ones; name another --out, or delete them")
    file, count = writer(str(folder)), 0
    for step, group, name, part, value in points:
        tag = "/".join(filter(None, (group, name, part)))
        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value)])
        file.add_event(Event(step=step, wall_time=time.time(), summary=summary))
        count += 1
    file.close()
    return count


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(
        prog="msalab tensorboard", description="Writes the curves of runs of msa-pretrain as "
        "TensorBoard event files; tensorboard --logdir DIR shows them. Compare by step: the events "
        "have the time at which they were read.")
    parser.add_argument("runs", nargs="+", metavar="RUN",
                        help="folder with curves.csv, or a folder of such folders")
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the event files")
    options = parser.parse_args(arguments)
    return ended(lambda: _work(options), options)


def _work(options):
    runs, writer = find_runs(options.runs), event_file_writer()
    for name, path in runs.items():
        points = list(read_points(path))
        print(f"{name}: {write_events(points, Path(options.out) / name, writer)} points")
