#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes programs.json: what the programs that measure layers say of data/sample.h5 and of planted
attention, so that a change of their engine shows. Numbers are those of summary.json.

usage: make_programs.py FOLDER_OF_PROGRAMS OUTPUT.json
"""

import json
import pathlib
import subprocess
import sys
import tempfile

SAMPLE = pathlib.Path(__file__).resolve().parents[2] / "data" / "sample.h5"
PLANTED = ["--tokens", "1K", "--sequences", "2", "--model-layers", "2", "--query-heads", "4", "--kv-heads", "2",
           "--head-dim", "32", "--index-dim", "32"]
SIZES = ["--block-size", "32", "--top-k", "4"]
COMPARE = ["{planted}", "--layers", "1", "--block-size", "32", "--budgets", "64,128"]
RUNS = {
    "analyze": ["msa-analyze", "{sample}", "--selectors", "oracle,quest,mean-key", "--block-size", "32", "--top-k",
                "8", "--sample-queries", "192"],
    "analyze-planted": ["msa-analyze", "{planted}", "--selectors", "index,window", *SIZES, "--unit-queries", "300"],
    "compare": ["msa-compare", "{sample}", "--layers", "20", "--selectors", "oracle,mean-key,quest,streaming-llm",
                "--block-size", "32", "--budgets", "256", "--sample-queries", "192"],
    "compare-heads": ["msa-compare", *COMPARE, "--selectors", "oracle,mean-key,window-tokens", "--share", "head"],
    "compare-decode": ["msa-compare", *COMPARE, "--selectors", "oracle,snapkv,random", "--phase", "decode",
                       "--prompt", "256", "--unit-queries", "100"],
    "advise": ["msa-advise", "{sample}", "--keep", "0.75", "--context", "32K", "--selectors", "oracle,quest,mean-key", "--block-size",
               "32,64", "--top-k", "4,8", "--forced-first", "0", "--forced-local", "1", "--sample-queries", "192"],
    "reuse": ["msa-reuse", "{planted}", *SIZES, "--lose", "0.5", "--sample-queries", "192"],
    "precision": ["msa-precision", "{planted}", *SIZES, "--formats", "e4m3,int4", "--scales", "none,block",
                  "--sample-queries", "192"],
}
DIGITS = 9
ROUNDING = "largest_difference_from_dense"  # nothing but rounding, which hangs on the processor


def numbers(of, path=""):
    """{JSON pointer: number} of all in `of`."""
    if isinstance(of, bool) or of is None or isinstance(of, str):
        return {}
    if isinstance(of, (int, float)):
        return {path: float(f"{of:.{DIGITS}g}") if isinstance(of, float) else of}
    items = enumerate(of) if isinstance(of, list) else of.items()
    return {key: value for name, inner in items if name != ROUNDING
            for key, value in numbers(inner, f"{path}/{name}").items()}


def main(programs: pathlib.Path, output: pathlib.Path):
    found = {"planted": PLANTED, "runs": {}}
    with tempfile.TemporaryDirectory() as folder:
        planted = f"{folder}/planted.h5"
        subprocess.run([programs / "msa-synth", "--out", planted, *PLANTED], check=True)
        for name, (program, *args) in RUNS.items():
            given = [str(SAMPLE) if arg == "{sample}" else planted if arg == "{planted}" else arg for arg in args]
            done = subprocess.run([programs / program, *given, "--out", f"{folder}/{name}"],
                                  stdout=subprocess.DEVNULL, check=False)
            if done.returncode not in (0, 2):  # 2: no setting reaches the target
                raise SystemExit(f"{program} ended with {done.returncode}")
            summary = json.loads(pathlib.Path(folder, name, "summary.json").read_text())
            kept = {key: value for key, value in summary.items() if key not in ("run", "options", "format_version")}
            found["runs"][name] = {"args": [program, *args], "numbers": numbers(kept)}
    output.write_text(json.dumps(found, indent=0) + "\n")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
