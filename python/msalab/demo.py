# SPDX-License-Identifier: MIT
"""From activations of a public model to pictures, in a minute: an Index Branch fitted to the sample that the package has,
what it selects and loses beside other selectors, which setting, format and cache, what it costs, and a report."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from .arguments import CommandLine
from .ending import Refusal, ended
from .programs import find_program

SIZES = ("--block-size", "32", "--top-k", "8")
FIT = (*SIZES, "--steps", "100", "--warmup-steps", "10", "--lr", "5e-4", "--eval-every", "10", "--train", ":1024",
       "--eval", "1024:")
DEFAULTS = {**dict(zip(SIZES[::2], SIZES[1::2])), "--selectors": "index,oracle,mean-key,window,random"}  # of msa-analyze
COMPARE = ("--block-size", "32", "--budgets", "128,256,512", "--phase", "decode", "--prompt", "1024",
           "--sample-queries", "256")
ADVISE = ("--queries", "1024:", "--keep", "0.85", "--context", "32K", "--block-size", "32,64", "--top-k", "4,8,16")
PRECISION = ("--queries", "1024:", *SIZES, "--formats", "bf16,e4m3,int8,int4", "--scales", "token", "--error", "0.02")
REUSE = (*SIZES, "--lose", "0.25", "--every", "2,3", "--sample-queries", "256")
WRITTEN = """
The run took {seconds:.0f} s. In {out}:
  report.html                     the pictures and how to read them: open it in a browser
  summary.json, metrics.csv       the numbers above
  results.h5                      everything; msalab.results reads it
  all/                            the same of all queries, not the held-out ones alone
  fit/                            the fitted indexer, and how the fit went
  compare/                        all selectors at equal budgets
  advise/, precision/, cache/     which setting, number format and size of cache
  reuse/                          which layers may share a selection, on planted layers
  cost.json, loop_orders.json     what msa-cost says of the paper's model and of this selection
Next: msalab analyze --help, or with a model of yours: msalab try --help"""


def data_folder() -> Path:
    """What the programs read, beside them."""
    return find_program("msa-analyze").parent.parent / "share/msalab/data"


def _say(line: str) -> None:
    print(f"\n== {line}", flush=True)


def _run(name: str, *words, out=subprocess.DEVNULL) -> None:
    """out: what gets the output of the program; None: ours."""
    waits = {"OMP_WAIT_POLICY": "passive"} | os.environ  # threads that wait leave their core to others
    done = subprocess.run([find_program(name), *map(str, words)], stdout=out, env=waits)
    if done.returncode:
        raise Refusal(f"{name} ended with exit code {done.returncode}; its message is above")


def _cost(path: Path, *words) -> Path:
    with open(path, "wb") as file:
        _run("msa-cost", *words, "--json", out=file)
    return path


def _analyse(out: Path, words: list[str]) -> list:
    """The options of msalab plot that name what was written. words: of msa-analyze."""
    def given(option: str) -> bool:
        return any(word.split("=")[0] == option for word in words)

    indexer, files = out / "fit/indexer.h5", []
    options = [f"{name}={value}" for name, value in DEFAULTS.items() if not given(name)]
    if not given("--queries"):
        _say("msa-analyze, on all queries: the heat maps")
        _run("msa-analyze", indexer, "--out", out / "all", "--overwrite", *options, *words)
        files += ["--selections", out / "all/results.h5"]
        options.append("--queries=1024:")
    _say("msa-analyze, on the queries held out: the numbers")
    _run("msa-analyze", indexer, "--out", out, "--overwrite", *options, *words, out=None)
    # Sampled queries have no neighbours: no loop orders and no decode steps then.
    if not given("--sample-queries"):
        files += ["--cost", _cost(out / "loop_orders.json", "--results", out / "results.h5")]
        _run("msa-cache", out / "results.h5", "--out", out / "cache", "--overwrite", "--time-per-token", "0.5")
        files += ["--cache", out / "cache/summary.json"]
    return files


def _answer(out: Path, data: Path) -> list:
    """The other programs, as options of msalab plot, too."""
    indexer, layers, files = out / "fit/indexer.h5", out / "layers.h5", ["--cost", _cost(out / "cost.json")]
    _say("msa-compare, on the queries held out; msa-advise, msa-precision, msa-reuse (on planted layers), msa-cost")
    _run("msa-synth", "--out", layers, "--overwrite", "--tokens", "1K", "--model-layers", "6")
    for name, read, words in (("compare", indexer, COMPARE), ("advise", indexer, ADVISE),
                              ("precision", indexer, PRECISION), ("reuse", layers, REUSE)):
        _run(f"msa-{name}", read, "--out", out / name, "--overwrite", *words)
        files += [f"--{name}", out / name / "summary.json"]
    layers.unlink()
    for record in sorted((data / "bench").glob("cuda-h100*.json")):
        files += ["--bench", record]
    return files


def _demo(out: Path, words: list[str]) -> int:
    from .plots.__main__ import main as plot  # what it lacks is said before the programs run
    began, data = time.monotonic(), data_folder()
    out.mkdir(parents=True, exist_ok=True)
    _say("msa-fit-indexer")
    _run("msa-fit-indexer", data / "sample.h5", "--out", out / "fit", "--overwrite", *FIT, out=None)
    files = [*_analyse(out, words), *_answer(out, data)]
    _say("pictures")
    code = plot([*map(str, [out / "results.h5", "--out", out, "--activations", data / "sample.h5", "--fit",
                            out / "fit/results.h5", *files])])
    if not code:
        print(WRITTEN.format(seconds=time.monotonic() - began, out=out))
    return code


def main(arguments=None) -> int:
    parser = CommandLine(prog="msalab demo", description=__doc__, example="msalab demo --out results/demo --top-k 16",
                         usage="msalab demo [-h] [--out DIR] [OPTIONS OF msa-analyze]")
    parser.add_argument("--out", metavar="DIR", default="results/demo",
                        help="gets everything, anew; default: results/demo")
    options, words = parser.parse_known_args(arguments)
    return ended(lambda: _demo(Path(options.out), words), options)


if __name__ == "__main__":
    sys.exit(main())
