#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How much faster several GPUs of a machine are than one: times one command, and adds it to a record.
The command gets the cores that are its GPUs' share, as a smaller machine would have them. In its
words, {devices} are the GPUs and {out} is a folder that does not exist yet. The file --same in it
must be the same bytes in all runs of a name.
usage: time_devices.py RECORD --name NAME --devices 0,1 --of GPUS --same FILE -- COMMAND...
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from record import Record, number, numbers_of, spaced, texts

from msalab.report import Shape
from msalab.results import Column

SHAPES = [
    Shape("work", "commands that were timed", 1, {
        "work_name": Column("text", "", "name of the command"), "timed_program": Column("text", "", "program and version"),
        "command": Column("text", "", "its words; {devices} are the GPUs, {out} a folder")}),
    Shape("runs", "runs of a command, in their order", 2, {
        "work_name": Column("text", "", "name of the command"), "run_number": Column("integer", "", "number of the run, from 0"),
        "gpus": texts("", "numbers of the GPUs"), "cores": Column("integer", "", "cores of the host that it got"),
        "module_loading": Column("text", "", "CUDA_MODULE_LOADING", "not recorded"),
        "run_seconds": number("s", "time of the run"), "before_units": number("s", "until its first unit of work began"),
        "behind_units": number("s", "since its last unit ended"),
        "unit_begins": texts("s", "when each unit began", "not recorded"),
        "unit_ends": texts("s", "when each of these units ended", "not recorded"),
        "sha256": Column("text", "", "of the file that must be the same")})]


def cores_of(devices: list[int], gpus: int) -> set[int]:
    """The share of this machine's cores."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // gpus
    return {core for device in devices for core in cores[device * share:(device + 1) * share]}


def units_of(out: Path, began: float, ended: float) -> dict:
    """[begin, end] of each unit that the records in `out` name, in seconds of the run, those of all
    workers, by their begin; and what lies before the first and behind the last: more GPUs do not make
    that shorter."""
    def seconds(text: str) -> float:
        return round(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() - began, 2)

    units = sorted([seconds(unit["started"]), seconds(unit["finished"])]
                   for record in out.rglob("run.json") for unit in json.loads(record.read_text())["units"])
    if not units:
        return {}
    behind = round(ended - began - max(end for _, end in units), 2)
    return {"before_units": units[0][0], "behind_units": behind, "unit_begins": spaced(begin for begin, _ in units),
            "unit_ends": spaced(end for _, end in units)}


def read_through(words: list[str]) -> None:
    """Files of the command are in memory, so that the first run does not read them from a disk alone.
    (It does read CUDA's libraries: on a fresh host run the command once before.)"""
    for word in words:
        if Path(word).is_file():
            with open(word, "rb") as file:
                while file.read(1 << 24):
                    pass


def timed(command: list[str], devices: list[int], gpus: int, same: str) -> dict:
    cores = cores_of(devices, gpus)
    environment = {"OMP_NUM_THREADS": str(len(cores)), "OMP_WAIT_POLICY": "passive"} | os.environ
    with tempfile.TemporaryDirectory() as folder:
        words = [word.replace("{out}", f"{folder}/out").replace("{devices}", ",".join(map(str, devices)))
                 for word in command]
        read_through(words)
        began, began_at = time.monotonic(), time.time()
        done = subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                              env=environment, preexec_fn=lambda: os.sched_setaffinity(0, cores))
        seconds = time.monotonic() - began
        if done.returncode != 0:
            sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stderr[-2000:]}")
        out = Path(folder, "out")
        digest = hashlib.sha256((out / same).read_bytes()).hexdigest()
        units = units_of(out, began_at, began_at + seconds)
    loading = os.environ.get("CUDA_MODULE_LOADING", "default")
    return {"gpus": spaced(devices), "cores": len(cores), "module_loading": loading, "run_seconds": round(seconds, 3),
            **units, "sha256": digest}


def main() -> None:
    if "--" not in sys.argv:
        sys.exit(__doc__)
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--devices", required=True, type=lambda text: [int(one) for one in text.split(",")])
    parser.add_argument("--of", required=True, type=int, help="GPUs of this machine")
    parser.add_argument("--same", required=True, metavar="FILE")
    words = sys.argv[sys.argv.index("--") + 1:]
    options = parser.parse_args(sys.argv[1:sys.argv.index("--")])
    run = timed(words, options.devices, options.of, options.same)

    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True)
    record = Record(options.record, "bench/time_devices.py", "Runs on several GPUs of a machine beside one", SHAPES,
                    {"device": gpu.stdout.splitlines()[0], "gpus": options.of})
    name = {"work_name": options.name}
    if not record.find("work", **name):
        program = subprocess.run([words[0], "--version"], capture_output=True, text=True).stdout.strip()
        record.put("work", name | {"timed_program": program, "command": " ".join(words)})
    before = [other for other in record.rows["runs"] if name.items() <= other.items()]
    record.put("runs", name | {"run_number": len(before)} | run)
    one = next((other["run_seconds"] for other in [*before, run] if len(numbers_of(other["gpus"])) == 1), None)
    ratio = f", {one / run['run_seconds']:.2f} times as fast as one" if one else ""
    print(f"{options.name} on {len(options.devices)}: {run['run_seconds']:.2f} s{ratio}", flush=True)
    if len({other["sha256"] for other in [*before, run]}) > 1:
        sys.exit(f"{options.name}: {options.same} differs")


if __name__ == "__main__":
    main()
