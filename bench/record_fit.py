#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fits Index Branches from every start, one layer at a time, and records how good they get; then
all layers of a short fit by one process and by one for each layer, and records how long it takes.

Each run is msa-fit-indexer's default but for the start; "normal" has the learning rate that a
random start needs. Recorded are held-out figures at a few steps, seconds, and the largest resident
memory of the processes beside the bytes of the layer. The runs of a part take turns. A part that is
not asked for stays as the record has it.
usage: record_fit.py FILE [--layers 3,6] [--parts starts,jobs]
                     [--out data/bench/fit_indexer.json] [FIT OPTIONS]
"""

import argparse
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

import h5py
from record import Record, number, spaced, texts

from msalab.report import Shape
from msalab.results import Column

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "build/release/bin/msa-fit-indexer"
STARTS = {"from-qk": [], "pca": [], "normal": ["--lr", "3e-3"]}
FIGURES = ("kl", "block_recall", "score_recall", "mass_kept", "oracle_mass")
STEPS = (0, 100, 1500)
TURNS = 3
LAYER = Column("integer", "", "number of the layer in the model")
START = Column("text", "", "start of the fit, --init")
PEAK = Column("integer", "B", "largest resident memory, of all processes")
SHAPES = [
    Shape("starts", "fits of one layer", 2, {
        "layer": LAYER, "start": START, "fit_options": Column("text", "", "further options"),
        "split": Column("text", "", "which queries were trained on, which are held out"),
        "run_seconds": number("s", "time of the run"), "peak_resident_bytes": PEAK}),
    Shape("figures", "the same, by step", 3, {
        "layer": LAYER, "start": START, "step": Column("integer", "", "training steps done"),
        **{f"held_out_{name}": number("", f"{name} of the held-out queries") for name in FIGURES}}),
    Shape("processes", "all layers of a short fit, by so many processes", 1, {
        "processes": Column("integer", "", "processes that share the run"), "turn_seconds": texts("s", "time of each turn"),
        "peak_resident_bytes": PEAK}),
    Shape("layer_sizes", "layers", 1, {"layer": LAYER, "layer_bytes": Column("integer", "B", "operands of the layer in the file")})]
SHORT = ["--steps", "40", "--warmup-steps", "20", "--eval-every", "40", "--eval-queries", "256"]


def peak_bytes(processes: list[subprocess.Popen]) -> int:
    """Sum of the largest resident memory seen of each running process; ends with the last one."""
    peaks = {process.pid: 0 for process in processes}
    while any(process.poll() is None for process in processes):
        for pid in peaks:
            status = pathlib.Path(f"/proc/{pid}/status")
            for line in status.read_text().splitlines() if status.exists() else []:
                if line.startswith("VmHWM:"):
                    peaks[pid] = max(peaks[pid], 1024 * int(line.split()[1]))
        time.sleep(0.2)
    return sum(peaks.values())


def run(file: str, out: str, options: list[str], count: int = 1) -> tuple[float, int]:
    """Seconds and peak_bytes of a fit by so many processes, which share the cores."""
    command = [str(PROGRAM), file, "--out", f"{out}/fit", "--block-size", "64", *options]
    threads = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // count))}
    began = time.monotonic()
    processes = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  env=os.environ | threads) for _ in range(count)]
    peak = peak_bytes(processes)
    seconds = time.monotonic() - began
    for process in processes:
        if process.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
    return seconds, peak


def fit(file: str, layer: int, start: str, options: list[str]) -> tuple[dict, list[dict]]:
    """The rows of starts and of figures."""
    with tempfile.TemporaryDirectory() as out:
        seconds, peak = run(file, out, ["--layers", str(layer), "--init", start, *STARTS[start],
                                        *options])
        with h5py.File(f"{out}/fit/results.h5") as results:
            layer_fit = results[f"fit/{layer}"]
            held_out, split = layer_fit["held_out"], layer_fit.attrs["split"]
            done = list(held_out["step"][()])
            at = {step: {name: float(held_out[name][done.index(step)]) for name in FIGURES}
                  for step in STEPS if step in done}
    print(f"layer {layer} {start:8} {seconds:6.1f} s {peak / 2**20:6.0f} MiB  " +
          "  ".join(f"{step}: recall {v['block_recall']:.4f} / {v['score_recall']:.4f}, mass "
                    f"{v['mass_kept']:.4f}" for step, v in at.items()), flush=True)
    key = {"layer": layer, "start": start}
    return key | {"fit_options": " ".join(STARTS[start] + options),
                  "split": split if isinstance(split, str) else split.decode(), "run_seconds": seconds,
                  "peak_resident_bytes": peak}, [
        key | {"step": step} | {f"held_out_{name}": value for name, value in v.items()} for step, v in at.items()]


def fit_side_by_side(file: str, layers: list[int], options: list[str], record: Record) -> None:
    options = ["--layers", ",".join(map(str, layers)), *SHORT, *options]
    runs = [{"jobs": jobs, "seconds": [], "peak_resident_bytes": 0} for jobs in (1, len(layers))]
    for _ in range(TURNS):
        for entry in runs:
            with tempfile.TemporaryDirectory() as out:
                seconds, peak = run(file, out, options, entry["jobs"])
            entry["seconds"].append(seconds)
            entry["peak_resident_bytes"] = max(peak, entry["peak_resident_bytes"])
    for entry in runs:
        print(f"{entry['jobs']} at once: {min(entry['seconds']):.1f} s, fastest of {TURNS}; "
              f"{entry['peak_resident_bytes'] / 2**20:.0f} MiB", flush=True)
        record.put("processes", {"processes": entry["jobs"], "turn_seconds": spaced(entry["seconds"]),
                                 "peak_resident_bytes": entry["peak_resident_bytes"]})
    record.run["jobs"] = {**where(), "options": options}
    record.write()


def where(program: pathlib.Path = PROGRAM) -> dict:
    """The program and the machine of a part."""

    def output_of(*command: str) -> str:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True,
                              check=True).stdout.strip()

    return {"commit": output_of("git", "describe", "--always", "--dirty"),
            "timed_program": output_of(str(program), "--version"), "machine": processor(),
            "cores": len(os.sched_getaffinity(0)), "system": platform.platform()}


def processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def layer_bytes(file: str, layer: int) -> int:
    with h5py.File(file) as activations:
        group = activations[f"layers/{layer}"]
        return sum(data.size * data.dtype.itemsize for data in group.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--layers", default="3,6")
    parser.add_argument("--parts", default="starts,jobs")
    parser.add_argument("--out", default=str(ROOT / "data/bench/fit_indexer.json"))
    options, rest = parser.parse_known_args()
    layers = [int(layer) for layer in options.layers.split(",")]
    parts, out = options.parts.split(","), pathlib.Path(options.out)
    record = Record(out, "bench/record_fit.py", "Fits from every start, and by several processes", SHAPES, {})
    if "starts" in parts:
        record.run |= where() | {"file": pathlib.Path(options.file).name}
        record.rows |= {"starts": [], "figures": [], "layer_sizes": []}
        for layer in layers:
            record.put("layer_sizes", {"layer": layer, "layer_bytes": layer_bytes(options.file, layer)})
            for start in STARTS:
                row, figures = fit(options.file, layer, start, rest)
                record.put("starts", row)
                for figure in figures:
                    record.put("figures", figure)
    if "jobs" in parts:
        record.rows["processes"] = []
        fit_side_by_side(options.file, layers, rest, record)
    print(f"recorded in {options.out}")


if __name__ == "__main__":
    main()
