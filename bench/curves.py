#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The curves of runs of msa-pretrain on GPUs.

usage: curves.py same A B       fails unless the curves of two runs are the same, speeds apart
       curves.py compare A B    fails unless those of one GPU (A) and two (B) are, but for roundings
       curves.py rates FOLDER   tokens per second and MFU of the runs train-* and two-* and of the logs
                                train-torch_*: a table, and FOLDER/rates.json
"""

import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]

STEPS = 20
# Of the first step, and at most in twenty of them (core/train/tolerance.h); absent: not bounded.
BOUNDS = {"loss": (1e-3, 0.01), "gradient_norm": (1e-2, None)}


def rows(run: pathlib.Path) -> list[list[str]]:
    return [line.split(",") for line in (run / "curves.csv").read_text().splitlines()]


def curve(run: pathlib.Path, name: str) -> dict[int, float]:
    return {int(r[0]): float(r[4]) for r in rows(run) if r[1:3] == ["train", name]}


def same(a: pathlib.Path, b: pathlib.Path) -> bool:
    speeds = ("tokens_per_second", "mfu")
    equal = [r for r in rows(a) if r[2] not in speeds] == [r for r in rows(b) if r[2] not in speeds]
    print(f"{b.name} {'is' if equal else 'IS NOT'} what {a.name} has, bit by bit")
    return equal


def compare(one: pathlib.Path, two: pathlib.Path) -> bool:
    good = True
    for name, (first, most) in BOUNDS.items():
        a, b = curve(one, name), curve(two, name)
        off = {step: abs(b[step] / a[step] - 1) for step in a.keys() & b.keys() if step < STEPS}
        worst = max(off.values())
        right = a.keys() == b.keys() and off[0] <= first and (most is None or worst <= most)
        good &= right
        print(f"{two.name} {'has' if right else 'HAS NOT'} the {name} of {one.name}: step 0 off by "
              f"{off[0]:.1e}, {STEPS} steps by at most {worst:.1e}")
    return good


def write_rates(path: pathlib.Path, device: str, speeds: dict, shares: dict) -> None:
    sys.path.insert(0, str(ROOT / "python"))
    from record import Record, spaced, texts

    from msalab.report import Shape
    from msalab.results import Column

    path.unlink(missing_ok=True)
    record = Record(path, "bench/curves.py", "Tokens per second of msa-pretrain", [Shape("rates", "runs", 1, {
        "run_name": Column("text", "", "arm, and what run.what says"),
        "run_rates": texts("1/s", "tokens of training steps alone, by each entry of the log", "not recorded"),
        "run_mfus": texts("1", "share of the peak that the model's FLOPs reach, by each entry of the log", "not recorded")})], {
            "device": device,
            "what": "tokens per second of msa-pretrain by the log's entries but the first (gpu/bench.sh). Names: arm, then "
                    "context or preset; 32k and 128k are one sequence of the preset pilot's sizes, by cuda-unordered; two-: "
                    "of one GPU and of two. torch: bench/pretrain_torch.py in the same run."})
    for name, found in speeds.items():
        record.put("rates", {"run_name": name, "run_rates": spaced(found),
                             "run_mfus": spaced(shares[name]) if name in shares else None})


def rates(folder: pathlib.Path) -> bool:
    speeds, shares = {}, {}
    for run in sorted({path.parent for kind in ("train", "two")
                       for path in folder.glob(f"{kind}-*/curves.csv")}):
        for name, to in (("tokens_per_second", speeds), ("mfu", shares)):
            found = [float(r[4]) for r in rows(run) if r[2] == name][1:]  # the first has the start
            if found:
                to[run.name.removeprefix("train-")] = found
    for log in sorted(folder.glob("train-torch_*.log")):
        last = log.read_text().splitlines()[-1:]
        if last and last[0].isdigit():
            speeds[log.stem.removeprefix("train-")] = [int(last[0])]
    if not speeds:
        return True
    device = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version",
                             "--format=csv,noheader"], capture_output=True, text=True, check=True)
    write_rates(folder / "rates.json", "; ".join(device.stdout.strip().splitlines()), speeds, shares)
    for name, found in speeds.items():
        share = f", MFU {statistics.median(shares[name]):.3f}" if name in shares else ""
        print(f"{name:20} {statistics.median(found):12.0f} tokens per second{share}")
    return True


def main() -> None:
    calls = {"same": (same, 2), "compare": (compare, 2), "rates": (rates, 1)}
    call, count = calls.get(sys.argv[1] if len(sys.argv) > 1 else "", (None, 0))
    if call is None or len(sys.argv) != 2 + count:
        sys.exit(__doc__)
    sys.exit(0 if call(*map(pathlib.Path, sys.argv[2:])) else 1)


if __name__ == "__main__":
    main()
