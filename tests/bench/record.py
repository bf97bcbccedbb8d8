#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs bench_operations with repetitions, records raw samples, and prints a table.

The record holds machine, commit, compiler and every repetition's time; shares are of the sgemm
measured at the start of the same run. Targets are those of the project; nothing here fails.
usage: record.py [--program build/release/bin/bench_operations] [--out data/bench/NAME.json]
                 [--repetitions 5] [--filter REGEX]
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

TARGETS = {  # share of sgemm, all cores
    "index_scores": 0.70,
    "dense_attention": 0.55,
    "block_mass": 0.50,
    "sparse_attention/union_structured": 0.45,
    "sparse_attention/union_random": 0.45,
}


def run(program: str, repetitions: int, pattern: str) -> dict:
    command = [program, "--benchmark_format=json", f"--benchmark_repetitions={repetitions}",
               "--benchmark_min_time=0.5", f"--benchmark_filter={pattern}"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout)


def commit() -> str:
    result = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty",
                             "--abbrev=12"], capture_output=True, text=True, check=False)
    return result.stdout.strip() or "unknown"


def summarize(raw: dict, program: str) -> dict:
    cases: dict[str, dict] = {}
    for entry in raw["benchmarks"]:
        if entry.get("run_type") == "aggregate":
            continue
        name = entry["name"].replace("/manual_time", "")
        if entry.get("error_occurred"):
            sys.exit(f"{name}: {entry['error_message']}")
        case = cases.setdefault(name, {"milliseconds": [], "gflop_per_s": [], "share_of_sgemm": []})
        case["milliseconds"].append(entry["real_time"] * 1e-6)
        for counter in ("gflop_per_s", "share_of_sgemm"):
            if counter in entry:
                case[counter].append(entry[counter])
    context = raw["context"]
    version = subprocess.run([str(pathlib.Path(program).with_name("msa-analyze")), "--version"],
                             capture_output=True, text=True, check=False).stdout.strip()
    return {
        "format": "msalab-bench", "commit": commit(), "program": version,
        "device": context["device"], "problem": context["problem"], "seed": context["seed"],
        "cores": context["num_cpus"], "date": context["date"],
        "load_average": context.get("load_avg"), "cases": cases,
    }


def print_table(record: dict) -> None:
    print(f"{record['device']}; {record['problem']}; commit {record['commit']}\n")
    print(f"{'case':40} {'median ms':>10} {'spread':>8} {'GFLOP/s':>9} {'of sgemm':>9} {'target':>7}")
    for name, case in record["cases"].items():
        times = case["milliseconds"]
        median = statistics.median(times)
        row = f"{name:40} {median:10.1f} {(max(times) - min(times)) / median:8.1%}"
        if case["gflop_per_s"]:
            row += f" {statistics.median(case['gflop_per_s']):9.1f}"
            row += f" {statistics.median(case['share_of_sgemm']):9.1%}"
            row += f" {TARGETS[name]:7.0%}" if name in TARGETS else ""
        print(row)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default=str(ROOT / "build/release/bin/bench_operations"))
    parser.add_argument("--out")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--filter", default=".")
    options = parser.parse_args()
    record = summarize(run(options.program, options.repetitions, options.filter), options.program)
    name = re.sub(r"[^a-z0-9]+", "-", f"cpu-{record['device']}".lower()).strip("-")
    out = pathlib.Path(options.out) if options.out else ROOT / "data/bench" / f"{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=1) + "\n")
    print_table(record)
    print(f"\nrecorded in {out}")


if __name__ == "__main__":
    main()
