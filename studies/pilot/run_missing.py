#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Does the runs of the pilot's sweeps that are not recorded, seed by seed, by msa-pretrain --sweep.

usage: run_missing.py SWEEP.json... --seconds S [--corpus DIR] [--out DIR] [--records DIR] [--program FILE] [-- WORDS...]

Recorded runs are those in DIR/runs.tar.xz of --records. A run that others start from is done again where its checkpoint
is not in --out. After S seconds the run under way writes its checkpoint and ends; the same command continues it. Started
several times, each time with another GPU (CUDA_VISIBLE_DEVICES), the processes share the runs. WORDS are added to the
command line of msa-pretrain; default: --backend cuda.
"""

import argparse
import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))
from msalab.claims import write_file  # noqa: E402


def missing_arms(arms, seed, recorded):
    """The arms of this seed without a record, and those whose files they read, in the sweep's order."""
    left = [arm for arm in arms if arm != "trunk" and f"{arm}/seed-{seed}" not in recorded]
    for arm in left:  # grows on the way
        left += [read for read in arms if read not in left and any(f"{{out}}/{read}/" in word for word in arms[arm])]
    return {arm: words for arm, words in arms.items() if arm in left}


def parse(args):
    words = args[args.index("--") + 1:] if "--" in args else ["--backend", "cuda"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--corpus", type=Path, default=Path("results/corpus"))
    parser.add_argument("--out", type=Path, default=Path("results/pilot"))
    parser.add_argument("--records", type=Path, default=Path("studies/pilot/records_2"))
    parser.add_argument("--program", default="build/release/bin/msa-pretrain")
    return parser.parse_args(args[:args.index("--")] if "--" in args else args), words


def main():
    options, words = parse(sys.argv[1:])
    train, held_out = ([*map(str, sorted((options.corpus / side).glob("*.txt")))] for side in ("train", "held_out"))
    if not train or not held_out:
        sys.exit(f"run_missing: {options.corpus} has no train/*.txt and held_out/*.txt")
    archive, end, failed = options.records / "runs.tar.xz", time.time() + options.seconds, 0
    recorded = set()
    if archive.exists():
        with tarfile.open(archive) as tar:
            recorded = {name.rsplit("/", 1)[0] for name in tar.getnames()}
    options.out.mkdir(parents=True, exist_ok=True)
    for path in options.sweeps:
        sweep = json.loads(path.read_text())
        for seed in sweep["seeds"]:
            arms, left = missing_arms(sweep["arms"], seed, recorded), end - time.time()
            if not arms or left <= 0:
                continue
            part = options.out / f"{path.stem}-{seed}.json"
            write_file(part, json.dumps(sweep | {"seeds": [seed], "arms": arms}, indent=1).encode())
            code = subprocess.run(["timeout", "--signal=INT", str(left), options.program, *train, "--held-out-text",
                                   *held_out, *words, "--sweep", part, "--out", options.out]).returncode
            if code not in (0, 124):  # 124: the time is up
                print(f"run_missing: {path}, seed {seed}: exit status {code}", file=sys.stderr, flush=True)
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
