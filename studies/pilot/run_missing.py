#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Does what is missing of the pilot's sweeps, for a number of seconds, a run on each of --devices at a time; with
0,0 two runs share a GPU, for which CUDA's Multi-Process Service should run.

usage: run_missing.py SWEEP.json... --seconds S [--devices 0,1] [--corpus DIR] [--out DIR]
                      [--records DIR] [--tar FILE] [--seeds 11,12] [--last] [-- WORDS...]

A run is missing unless its record is in --records or in --out. Sweeps are done in the order given,
seed by seed. A run that is under way when the time is up stops behind a checkpoint in --out, and
goes on when this is started again; --last says that nobody will start it again, so that no run
begins that would not end in time. What has ended is recorded in --tar, one file: of each run
ARM/seed-S/summary.json and curves.csv, without what stands elsewhere, or diverged.json; and runs.csv.
pack_records.py adds them to --records. The tar is written anew whenever a run ends. Runs are on GPUs;
WORDS, as --backend cpu, are added to every command line.
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
import threading
import time
from pathlib import Path

STOPPED = 130  # exit status of a run that was asked to stop
STOPPING_SECONDS = 10  # that a run may need to write its checkpoint
# Entries of the curves that no record needs: the same in all runs, in runs.csv, or, of the KL loss of
# every layer, in the probes.
LEFT_OUT = re.compile(rb",(learning_rate|lr|mfu|tokens_per_second|kl_loss),")
GUESS_SECONDS = 100  # of a run, until one has ended


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
        self.name = f"{arm}/seed-{seed}"
        own = [word.replace("{seed}", str(seed)).replace("{out}", str(out))
               for word in sweep["arms"][arm]]
        self.words = without(sweep.get("words", []), own) + own
        trunk = out / "trunk" / f"seed-{seed}" / "checkpoint.h5"
        self.trunk = trunk if str(trunk) in own else None

    def tokens_per_second(self):
        """Median over the entries of the run's log; 0 without any."""
        path = self.folder / "curves.csv"
        lines = path.read_text().splitlines() if path.exists() else []
        rates = sorted(float(line.rsplit(",", 1)[1]) for line in lines
                       if ",tokens_per_second," in line)
        return round(rates[len(rates) // 2]) if rates else 0

    def left(self, folder):
        """The files that the run has left there; none while it is missing."""
        if (folder / "diverged.json").exists():
            return ["diverged.json"]
        names = ["summary.json", "curves.csv"]
        return names if all((folder / name).exists() for name in names) else []


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


class Queue:
    """Which run is next; asked by one thread for each GPU."""

    def __init__(self, runs, options):
        self.options, self.lock, self.end = options, threading.Lock(), time.time() + options.seconds
        trunks = {run.trunk for run in runs}
        known = recorded(options.records)
        missing = [run for run in runs if run.folder / "checkpoint.h5" not in trunks
                   and run.name not in known and not run.left(run.folder)]
        needed = {run.trunk for run in missing}
        self.runs = [run for run in runs if run in missing or
                     (run.folder / "checkpoint.h5" in needed and
                      not (run.folder / "checkpoint.h5").exists())]
        self.trunks_to_come = {run.folder / "checkpoint.h5" for run in self.runs
                               if run.folder / "checkpoint.h5" in needed}
        self.known = known
        self.seconds, self.at_work, self.failed, self.lines = [], {}, [], []

    def take(self):
        """The next run; None where none is left that may begin."""
        while True:
            with self.lock:
                left = self.end - time.time()
                expected = max(self.seconds, default=GUESS_SECONDS)
                if not self.runs or left < STOPPING_SECONDS or (self.options.last
                                                                and left < expected):
                    return None
                for run in self.runs:
                    if run.trunk in self.trunks_to_come:
                        continue
                    self.runs.remove(run)
                    self.at_work[threading.get_ident()] = None  # not started yet
                    return run
                if not self.at_work:
                    return None  # their trunk has failed
            time.sleep(0.2)

    def started(self, process):
        with self.lock:
            self.at_work[threading.get_ident()] = process

    def ended(self, run, device, began, code, at_once):
        with self.lock:
            del self.at_work[threading.get_ident()]
            seconds = time.time() - began
            if code == 0 and (run.folder / "checkpoint.h5") in self.trunks_to_come:
                self.trunks_to_come.remove(run.folder / "checkpoint.h5")
            elif code == 0 and run.arm != "trunk":
                self.seconds.append(seconds)
            elif code not in (0, STOPPED) and not run.left(run.folder):
                self.failed.append(run.name)
            rate = run.tokens_per_second()
            self.lines.append([run.name, device, round(began), round(seconds, 1), code, at_once,
                               rate])
            print(f"{run.name}: GPU {device}, {seconds:.1f} s, exit status {code}, "
                  f"{rate} tokens/s, {at_once} runs at once", flush=True)

    def stop_in_time(self, workers):
        """Asks what is under way to stop when the time is up; returns when no worker is left."""
        while time.time() < self.end - STOPPING_SECONDS:
            if not any(worker.is_alive() for worker in workers):
                return
            time.sleep(0.2)
        with self.lock:
            for process in self.at_work.values():
                if process is not None:
                    process.send_signal(signal.SIGINT)


def shared_host(workers):
    """The environment of one of some runs at once: probes and evaluations compute on the host, and
    threads that spin while they wait keep those of the other runs from working."""
    threads = max(1, len(os.sched_getaffinity(0)) // workers)
    return {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(threads)} | os.environ


def work(queue, device, runs, options, texts):
    environment = shared_host(len(options.devices.split(",")))
    while run := queue.take():
        run.folder.mkdir(parents=True, exist_ok=True)
        words = without(run.words, options.words) + options.words
        command = [options.program, *texts, *words, "--seed", str(run.seed), "--out", run.folder,
                   "--devices", str(device), "--resume"]
        began, log = time.time(), run.folder / "log.txt"
        with open(log, "ab") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, env=environment)
            queue.started(process)
            at_once = len(queue.at_work)
            code = process.wait()
        if code not in (0, STOPPED):
            said = log.read_text(errors="replace").strip().splitlines()[-1:]
            print(f"{run.name}: {' '.join(said)}", file=sys.stderr, flush=True)
            after = re.search(r"diverged: .* is not finite after (\d+) steps", "".join(said))
            if after:
                (run.folder / "diverged.json").write_text(
                    json.dumps({"diverged_after": int(after.group(1))}) + "\n")
        queue.ended(run, device, began, code, at_once)
        with queue.lock:
            try:
                pack(runs, queue.known, options, queue.lines)
            except OSError as error:  # the next run's end tries again
                print(f"run_missing: {options.tar}: {error}", file=sys.stderr, flush=True)


def pack(runs, known, options, lines):
    """The records of what is done here and not in --records, whose names are `known`."""
    partial = options.tar.with_name(options.tar.name + ".partial")
    with tarfile.open(partial, "w") as tar:
        def add(name, data):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        for run in runs:
            if run.arm == "trunk" or run.name in known:
                continue
            for name in run.left(run.folder):
                data = (run.folder / name).read_bytes()
                if name == "summary.json":
                    summary = json.loads(data)
                    summary.pop("definitions", None)
                    data = json.dumps(summary, separators=(",", ":"),
                                      ensure_ascii=False).encode() + b"\n"
                if name == "curves.csv":
                    data = b"".join(line for line in data.splitlines(keepends=True)
                                    if not LEFT_OUT.search(line))
                add(f"{run.name}/{name}", data)
        table = io.StringIO()
        csv.writer(table, lineterminator="\n").writerows(
            [["run", "gpu", "began", "seconds", "exit_status", "runs_at_once",
              "tokens_per_second"], *lines])
        add(f"runs-{round(time.time())}.csv", table.getvalue().encode())
    partial.replace(options.tar)


def parse(args):
    words = args[args.index("--") + 1:] if "--" in args else []
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--devices", default="0")
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
    texts = sorted(map(str, (options.corpus / "train").glob("*.txt")))
    held_out = sorted(map(str, (options.corpus / "held_out").glob("*.txt")))
    if not texts or not held_out:
        sys.exit(f"run_missing: {options.corpus} has no train/*.txt and held_out/*.txt")
    texts += ["--held-out-text", *held_out]
    runs = read_runs(options)
    queue = Queue(runs, options)
    print(f"{len(queue.runs)} of {len(runs)} runs are missing", flush=True)
    workers = [threading.Thread(target=work, args=(queue, int(device), runs, options, texts))
               for device in options.devices.split(",")]
    for worker in workers:
        worker.start()
    queue.stop_in_time(workers)
    for worker in workers:
        worker.join()
    pack(runs, queue.known, options, queue.lines)
    print(f"{len(queue.runs)} are left; records in {options.tar}", flush=True)
    return 1 if queue.failed else 0


if __name__ == "__main__":
    sys.exit(main())
