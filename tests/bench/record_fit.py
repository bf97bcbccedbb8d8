#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Fits Index Branches from every start, one layer at a time, and records how good they get.

Each run is msa-fit-indexer's default but for the start; "normal" has the learning rate that a
random start needs. Recorded are held-out figures at a few steps, seconds, and the largest resident
memory of the process beside the bytes of the layer.
usage: record_fit.py FILE [--layers 3,6] [--out data/bench/fit_indexer.json] [FIT OPTIONS]
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import tempfile
import time

import h5py

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import record as bench  # noqa: E402

PROGRAM = bench.ROOT / "build/release/bin/msa-fit-indexer"
STARTS = {"from-qk": [], "pca": [], "normal": ["--lr", "3e-3"]}
FIGURES = ("kl", "block_recall", "score_recall", "mass_kept", "oracle_mass")
STEPS = (0, 100, 1500)


def peak_bytes(process: subprocess.Popen) -> int:
    """Largest resident memory seen of a running process; ends with it."""
    peak = 0
    status = pathlib.Path(f"/proc/{process.pid}/status")
    while process.poll() is None:
        for line in status.read_text().splitlines() if status.exists() else []:
            if line.startswith("VmHWM:"):
                peak = max(peak, 1024 * int(line.split()[1]))
        time.sleep(0.2)
    return peak


def fit(file: str, layer: int, start: str, options: list[str]) -> dict:
    with tempfile.TemporaryDirectory() as out:
        command = [str(PROGRAM), file, "--out", f"{out}/fit", "--layers", str(layer),
                   "--init", start, *STARTS[start], *options]
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        peak = peak_bytes(process)
        seconds = time.monotonic() - began
        if process.returncode != 0:
            sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
        with h5py.File(f"{out}/fit/results.h5") as results:
            layer_fit = results[f"fit/{layer}"]
            held_out, split = layer_fit["held_out"], layer_fit.attrs["split"]
            done = list(held_out["step"][()])
            at = {str(step): {name: float(held_out[name][done.index(step)]) for name in FIGURES}
                  for step in STEPS if step in done}
    print(f"layer {layer} {start:8} {seconds:6.1f} s {peak / 2**20:6.0f} MiB  " +
          "  ".join(f"{step}: recall {v['block_recall']:.4f} / {v['score_recall']:.4f}, mass "
                    f"{v['mass_kept']:.4f}" for step, v in at.items()), flush=True)
    return {"layer": layer, "init": start, "options": STARTS[start] + options,
            "split": split if isinstance(split, str) else split.decode(), "seconds": seconds,
            "peak_resident_bytes": peak, "held_out_at_step": at}


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
    parser.add_argument("--out", default=str(bench.ROOT / "data/bench/fit_indexer.json"))
    options, rest = parser.parse_known_args()
    layers = [int(layer) for layer in options.layers.split(",")]
    version = subprocess.run([str(PROGRAM), "--version"], capture_output=True, text=True,
                             check=True).stdout.strip()
    record = {
        "format": "msalab-fit-bench", "commit": bench.commit(), "program": version,
        "machine": processor(), "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(), "file": pathlib.Path(options.file).name,
        "layer_bytes": {str(layer): layer_bytes(options.file, layer) for layer in layers},
        "runs": [fit(options.file, layer, start, rest) for layer in layers for start in STARTS],
    }
    pathlib.Path(options.out).write_text(json.dumps(record, indent=1) + "\n")
    print(f"recorded in {options.out}")


if __name__ == "__main__":
    main()
