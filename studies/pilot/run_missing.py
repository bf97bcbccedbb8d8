#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Does what is missing of the pilot's sweeps, for a number of seconds, one run at a time. Started several times, each
with a GPU of its own (CUDA_VISIBLE_DEVICES=1), the processes share the runs: each claims the one that it is at.

usage: run_missing.py SWEEP.json... --seconds S [--corpus DIR] [--out DIR] [--records DIR] [--tar FILE]
                      [--seeds 11,12] [--last] [-- WORDS...]

A run is missing unless its record is in --records or in --out. Sweeps are done in the order given, seed by seed. A run
that is under way when the time is up stops behind a checkpoint in --out, and goes on when this is started again; --last
says that nobody will start it again, so that no run begins that would not end in time. Whenever a run ends, what has
ended is recorded in --tar, one file, which pack_records.py adds to --records: of each run ARM/seed-S/summary.json and
curves.csv, without what stands elsewhere, or diverged.json; and runs.csv. WORDS, as --backend cpu, are added to every
command line.
"""

import argparse
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))
from msalab import claims  # noqa: E402
from msalab.ending import Refusal  # noqa: E402

STOPPED = 130  # exit status of a run that was asked to stop
STOPPING_SECONDS = 10  # that a run may need to write its checkpoint
# Entries of the curves that no record needs: the same in all runs, in runs.csv, or, of the KL loss of
# every layer, in the probes.
LEFT_OUT = re.compile(rb",(learning_rate|lr|mfu|tokens_per_second|kl_loss),")
GUESS_SECONDS = 100  # of a run, until one has ended
COLUMNS = ["run", "gpu", "began", "seconds", "exit_status", "runs_at_once", "tokens_per_second"]


def option_of(word):
    return word.split("=")[0] if word.startswith("--") else None


def without(words, others):
    """The words but for the options that `others` name, each with its values."""
    named = {option_of(word) for word in others} - {None}
    kept, dropping = [], False
    for word in words:
        if option_of(word) is not None:
            dropping = option_of(word) in named
        if not dropping:
            kept.append(word)
    return kept


class Run:
    def __init__(self, sweep, seed, arm, out):
        self.arm, self.seed, self.folder = arm, seed, out / arm / f"seed-{seed}"
        self.name, self.claim, self.times = f"{arm}/seed-{seed}", self.folder / "claim", self.folder / "runs.csv"
        own = [word.replace("{seed}", str(seed)).replace("{out}", str(out))
               for word in sweep["arms"][arm]]
        self.words = without(sweep.get("words", []), own) + own
        trunk = out / "trunk" / f"seed-{seed}"
        self.trunk = trunk if str(trunk / "checkpoint.h5") in own else None

    def tokens_per_second(self):
        """Median over the entries of the run's log; 0 without any."""
        path = self.folder / "curves.csv"
        lines = path.read_text().splitlines() if path.exists() else []
        rates = sorted(float(line.rsplit(",", 1)[1]) for line in lines
                       if ",tokens_per_second," in line)
        return round(rates[len(rates) // 2]) if rates else 0

    def left(self):
        """The files that the run has left; none while it is missing."""
        if (self.folder / "diverged.json").exists():
            return ["diverged.json"]
        names = ["summary.json", "curves.csv"]
        return names if all((self.folder / name).exists() for name in names) else []


def recorded(records):
    """The names of the runs in the folder's runs.tar.xz."""
    archive = records / "runs.tar.xz"
    if not archive.exists():
        return set()
    with tarfile.open(archive) as tar:
        return {name.rsplit("/", 1)[0] for name in tar.getnames()}


def read_runs(options):
    runs, out = {}, options.out
    for path in options.sweeps:
        sweep = json.loads(path.read_text())
        for seed in options.seeds or sweep["seeds"]:
            for arm in sweep["arms"]:
                run = Run(sweep, seed, arm, out)
                runs.setdefault(run.name, run)
    return list(runs.values())


def missing_of(runs, known):
    """Those to be done, trunks only of what begins with them."""
    trunks = {run.trunk for run in runs}
    left = [run for run in runs if not run.left()]
    needed = {run.trunk for run in left if run.folder not in trunks and run.name not in known}
    return [run for run in left if run.folder in needed or run.folder not in trunks and run.name not in known]


def take(runs, missing):
    """The first of the runs whose trunk is there and that no other process is at, and its claim; None without one."""
    to_come = {run.folder for run in missing}
    for run in runs:
        if run.trunk not in to_come:
            run.folder.mkdir(parents=True, exist_ok=True)
            claim = claims.take(run.claim)
            if claim is not None:
                return run, claim
    return None


def do(run, texts, options, end):
    """Its exit status, and the seconds that it took."""
    words = without(run.words, options.words) + options.words
    command = [options.program, *texts, *words, "--seed", str(run.seed), "--out", run.folder, "--resume"]
    began, log = time.time(), run.folder / "log.txt"
    with open(log, "ab") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
        at_once = sum(1 for claim in options.out.glob("*/*/claim") if claims.holder_of(claim))
        try:
            code = process.wait(max(0, end - STOPPING_SECONDS - began))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            code = process.wait()
    seconds, rate, gpu = time.time() - began, run.tokens_per_second(), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if code not in (0, STOPPED):
        said = log.read_text(errors="replace").strip().splitlines()[-1:]
        print(f"{run.name}: {' '.join(said)}", file=sys.stderr, flush=True)
        after = re.search(r"diverged: .* is not finite after (\d+) steps", "".join(said))
        if after:
            claims.write_file(run.folder / "diverged.json", f'{{"diverged_after": {after[1]}}}\n'.encode())
    with open(run.times, "a", newline="") as table:
        csv.writer(table, lineterminator="\n").writerow(
            [run.name, gpu, round(began), round(seconds, 1), code, at_once, rate])
    print(f"{run.name}: {seconds:.1f} s, exit status {code}, {rate} tokens/s, {at_once} runs at once", flush=True)
    return code, seconds


def pack(runs, known, options):
    """The records of what is done in --out, by any process, and not in --records, whose names are `known`."""
    packed, lines = io.BytesIO(), [",".join(COLUMNS) + "\n"]
    with tarfile.open(fileobj=packed, mode="w") as tar:
        def add(name, data):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for run in runs:
            if run.times.exists():
                lines.append(run.times.read_text())
            if run.arm == "trunk" or run.name in known:
                continue
            for name in run.left():
                data = (run.folder / name).read_bytes()
                if name == "curves.csv":
                    data = b"".join(line for line in data.splitlines(keepends=True)
                                    if not LEFT_OUT.search(line))
                add(f"{run.name}/{name}", data)
        add("runs.csv", "".join(lines).encode())
    try:
        claims.write_file(options.tar, packed.getvalue())
    except Refusal as error:  # the next run's end tries again
        print(f"run_missing: {error}", file=sys.stderr, flush=True)


def parse(args):
    words = args[args.index("--") + 1:] if "--" in args else []
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--corpus", type=Path, default=Path("results/corpus"))
    parser.add_argument("--out", type=Path, default=Path("results/pilot"))
    parser.add_argument("--records", type=Path, default=Path("studies/pilot/records_2"))
    parser.add_argument("--tar", type=Path, default=Path("records.tar"))
    parser.add_argument("--program", default="build/release/bin/msa-pretrain")
    parser.add_argument("--seeds", type=lambda text: [int(seed) for seed in text.split(",")])
    parser.add_argument("--last", action="store_true")
    options = parser.parse_args(args[:args.index("--")] if "--" in args else args)
    options.words = without(["--backend", "cuda"], words) + words
    return options


def main():
    options = parse(sys.argv[1:])
    end = time.time() + options.seconds
    texts = sorted(map(str, (options.corpus / "train").glob("*.txt")))
    held_out = sorted(map(str, (options.corpus / "held_out").glob("*.txt")))
    if not texts or not held_out:
        sys.exit(f"run_missing: {options.corpus} has no train/*.txt and held_out/*.txt")
    texts += ["--held-out-text", *held_out]
    runs, known = read_runs(options), recorded(options.records)
    print(f"{len(missing_of(runs, known))} of {len(runs)} runs are missing", flush=True)
    tried, failed, longest = set(), set(), 0
    while True:
        missing, left = missing_of(runs, known), end - time.time()
        begins = left >= (max(longest or GUESS_SECONDS, STOPPING_SECONDS) if options.last else STOPPING_SECONDS)
        taken = take([run for run in missing if run not in tried], missing) if begins else None
        if taken is not None:
            run, claim = taken
            tried.add(run)
            with claim:
                if not run.left():
                    code, seconds = do(run, texts, options, end)
                    longest = max(longest, seconds if code == 0 else 0)
                    if code not in (0, STOPPED) and not run.left():
                        failed.add(run)
                    pack(runs, known, options)
        elif begins and any(claims.holder_of(run.claim) for run in missing):
            time.sleep(0.2)  # one that ends early leaves its run
        else:
            break
    pack(runs, known, options)  # another process may have written an earlier state last
    print(f"{len(missing)} are left; records in {options.tar}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
