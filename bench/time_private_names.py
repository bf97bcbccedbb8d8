#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What PyTorch's private names are worth (python/README.md): time of a decode step without a CUDA
graph, index_select and sparse_attention of one token a sequence, with and without each of them. Every
variant is a process of its own; variants take turns. msalab must be importable, with the cuda backend.
usage: time_private_names.py RECORD [--rounds 2]
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from record import Record, numbers_of, spaced, texts

from msalab.report import Shape
from msalab.results import Column

VARIANTS = ("as it is", "no DLPackExchangeAPI", "public device and stream", "through the dispatcher",
            "none of them")
CASES = ((1, 4096), (8, 4096), (1, 131072))  # sequences, keys of each
STEPS, RUNS = 300, 3
SHAPES = [Shape("steps", "decode steps, by what is done without PyTorch's private names", 2, {
    "variant": Column("text", "", "what is done without"), "step_case": Column("text", "", "sequences x keys of each"),
    "step_us": texts("us", "of a step, median in each round")})]


def step_times(variant: str) -> dict:
    import torch
    from timer import step_ms
    if variant in ("no DLPackExchangeAPI", "none of them"):
        del torch.Tensor.__dlpack_c_exchange_api__
    import msalab.torch as m
    from msalab import operations
    if variant in ("through the dispatcher", "none of them"):
        m._is_watched = lambda: True
    if variant in ("public device and stream", "none of them"):
        tensors = operations._tensors()
        tensors.current = torch.cuda.current_device
        tensors.stream = lambda device: torch.cuda.current_stream(device).cuda_stream
    found = {"torch": torch.__version__, "device": torch.cuda.get_device_name(), "step_us": {}}
    torch.manual_seed(0)
    for sequences, keys in CASES:
        q, index_q, k, v, index_k = (
            torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
            for shape in ((sequences, 64, 128), (sequences, 4, 128), (sequences * keys, 4, 128),
                          (sequences * keys, 4, 128), (sequences * keys, 128)))
        at = {"block_size": 128, "cu_seqlens_q": list(range(sequences + 1)),
              "cu_seqlens_k": [keys * number for number in range(sequences + 1)]}
        with torch.no_grad():
            times = step_ms(lambda: m.sparse_attention(q, k, v, m.index_select(index_q, index_k, 16, **at), **at),
                            "cuda", RUNS, warm_up=1, calls=STEPS)
        found["step_us"][f"{sequences} x {keys}"] = round(1e3 * statistics.median(times), 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--variant", choices=VARIANTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.variant:
        print(json.dumps(step_times(options.variant)))
        return
    options.record.unlink(missing_ok=True)
    record = Record(options.record, "bench/time_private_names.py", "What PyTorch's private names are worth", SHAPES, {})
    for _ in range(options.rounds):
        for variant in VARIANTS:
            done = subprocess.run([sys.executable, __file__, options.record, "--variant", variant],
                                  capture_output=True, text=True)
            if done.returncode != 0:
                sys.exit(f"{variant}: {done.stderr}")
            found = json.loads(done.stdout)
            record.run |= {"torch": found["torch"], "device": found["device"]}
            for case, microseconds in found["step_us"].items():
                key = {"variant": variant, "step_case": case}
                before = record.find("steps", **key) or {"step_us": ""}
                record.put("steps", key | {"step_us": spaced([*numbers_of(before["step_us"]), microseconds])})
            print(f"{variant}: {found['step_us']}", flush=True)


if __name__ == "__main__":
    main()
