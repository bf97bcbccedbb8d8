#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Are the ids by an int8 copy of index_k those of the operands? Compares them on random rows, on a GPU.

usage: exact_ids.py [--rows 1e8] [--seed 0] [--out FILE]

A row is a query of a group. Rounds differ in the number of keys, their channels, the block size, k and the kind of
their values: normal; normed, rows of unit RMS times weights, as MiniMax-M3 normalises them; heavy, of
Student's t with two degrees of freedom; tied, whole numbers, so that scores repeat; alike, keys that
differ little, so that bounds separate few blocks. The exit status is 1 if any id is another. FILE gets
the counts of each kind, in JSON.
"""

import argparse
import json
import sys
import time
from collections import Counter

import torch

import msalab
from msalab import operations

KINDS = ("normal", "normed", "heavy", "tied", "alike")
GROUPS = 4
# keys, queries, channels, block size, k
SIZES = ((8192, 8192, 128, 128, 16), (32768, 32768, 128, 128, 16), (32768, 32768, 64, 64, 16),
         (65536, 16384, 128, 64, 32), (131072, 32768, 128, 128, 16), (131072, 1, 128, 128, 16))


def rows_of(kind: str, shape, generator) -> torch.Tensor:
    device = generator.device
    values = torch.randn(shape, generator=generator, device=device)
    if kind == "normed":
        weights = 1 + 0.2 * torch.randn(shape[-1], generator=generator, device=device)
        values *= weights * values.square().mean(-1, keepdim=True).rsqrt()
    elif kind == "heavy":  # normal / sqrt(chi2(2) / 2)
        values /= (-torch.rand(shape, generator=generator, device=device).clamp_min(1e-6).log()).sqrt()
    elif kind == "tied":
        values = (2 * values).round()
    elif kind == "alike":
        values = values[:1] + values / 64
    return values.bfloat16().to(torch.float32 if generator.device.type == "cpu" else torch.bfloat16)


def others(index_q, index_k, block_size: int, top_k: int) -> tuple[int, str]:
    """How many ids by an int8 copy are not those of the operands, and who answered."""
    ends = {"cu_seqlens_q": [0, len(index_q)], "cu_seqlens_k": [0, len(index_k)], "block_size": block_size}
    copy = msalab.store_coarse(index_k.float().cpu(), block_size=block_size)
    coarse = tuple(part.to(index_k.device) for part in copy)
    want = msalab.index_select(index_q, index_k, top_k, **ends)
    got = msalab.index_select(index_q, index_k, top_k, coarse=coarse, **ends)
    return int((got != want).sum()), operations.backend_of(index_q).answered_by


def compare(rows: int, seed: int, device: str = "cuda", sizes=SIZES, groups: int = GROUPS) -> tuple[dict, Counter]:
    """{kind: {"rows", "ids", "others"}} of at least so many rows in all, and who answered how many calls."""
    generator = torch.Generator(device).manual_seed(seed)
    counts = {kind: {"rows": 0, "ids": 0, "others": 0} for kind in KINDS}
    done, answered = 0, Counter()
    while done < rows:
        for keys, queries, channels, block_size, top_k in sizes:
            for kind in KINDS:
                index_q = rows_of(kind, (queries, groups, channels), generator)
                index_k = rows_of(kind, (keys, channels), generator)
                count = counts[kind]
                count["rows"] += queries * groups
                count["ids"] += queries * groups * top_k
                other, kernel = others(index_q, index_k, block_size, top_k)
                count["others"] += other
                answered[kernel] += 1
                done += queries * groups
    return counts, answered


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=1e8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", metavar="FILE")
    options = parser.parse_args()
    began = time.monotonic()
    counts, answered = compare(int(options.rows), options.seed)
    total = {key: sum(count[key] for count in counts.values()) for key in ("rows", "ids", "others")}
    for kind, count in {**counts, "in all": total}.items():
        print(f"{kind:8} {count['rows']:12,} rows {count['ids']:14,} ids {count['others']:6,} others")
    print(", ".join(f"{calls} calls by {kernel}" for kernel, calls in answered.items()))
    print(f"seed {options.seed}, {time.monotonic() - began:.0f} s")
    if options.out:
        record = {"format": "msa-exact-ids", "format_version": 1, "torch": torch.__version__,
                  "device": torch.cuda.get_device_name(), "seed": options.seed, "groups": GROUPS,
                  "sizes": [dict(zip(("keys", "queries", "channels", "block_size", "top_k"), size))
                            for size in SIZES], "calls": answered, "kinds": counts, **total}
        with open(options.out, "w") as file:
            json.dump(record, file)
            file.write("\n")
    return 1 if total["others"] else 0


if __name__ == "__main__":
    sys.exit(main())
