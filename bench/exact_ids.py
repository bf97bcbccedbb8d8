#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Are the ids by an int8 copy of index_k those of the operands? Compares them on random rows, on a GPU.

A row is a query of a group. The calls of a round differ in the number of keys, their channels, the block size,
k, and the kind of their values: normal; normed, rows of unit RMS times weights, as MiniMax-M3 normalises
them; heavy, of Student's t with two degrees of freedom; tied, whole numbers, so that scores repeat; alike,
keys that share a part, so that more blocks are scored again; and marked, keys so alike that long rows are
left to the kernel without a copy. Rounds follow until there are enough rows. The exit status is 1 if any
id is another.
"""

import argparse
import json
import sys
import time
from collections import Counter

import torch

import msalab
from msalab import _msalab, operations

KINDS = ("normal", "normed", "heavy", "tied", "alike", "marked")
GROUPS = 4
# keys, queries, channels, block size, k
SIZES = ((8192, 8192, 128, 128, 16), (32768, 32768, 128, 128, 16), (32768, 32768, 64, 64, 16),
         (65536, 16384, 128, 64, 32), (131072, 32768, 128, 128, 16), (262144, 8192, 128, 128, 16),
         (262144, 1, 128, 128, 16))


def operands_of(kind: str, queries: int, keys: int, channels: int, groups: int, generator):
    """index_q and index_k in bfloat16; float32 on the CPU."""
    device = generator.device

    def rows(*shape):
        values = torch.randn(shape, generator=generator, device=device)
        if kind == "normed":
            weights = 1 + 0.2 * torch.randn(channels, generator=generator, device=device)
            values *= weights * values.square().mean(-1, keepdim=True).rsqrt()
        elif kind == "heavy":  # normal / sqrt(chi2(2) / 2)
            values /= (-torch.rand(shape, generator=generator, device=device).clamp_min(1e-6).log()).sqrt()
        elif kind == "tied":
            values = (2 * values).round()
        return values

    index_q, index_k = rows(queries, groups, channels), rows(keys, channels)
    if kind in ("alike", "marked"):
        index_k = index_k[:1] + index_k / (2 if kind == "alike" else 64)
    stored = torch.float32 if device.type == "cpu" else torch.bfloat16
    return index_q.bfloat16().to(stored), index_k.bfloat16().to(stored)


def others(index_q, index_k, block_size: int, top_k: int) -> tuple[int, int, str]:
    """The number of ids, how many of them differ with an int8 copy of the keys, and the backend that took the copy."""
    ends = {"cu_seqlens_q": [0, len(index_q)], "cu_seqlens_k": [0, len(index_k)], "block_size": block_size}
    copy = msalab.store_coarse(index_k.float().cpu(), block_size=block_size)
    coarse = tuple(part.to(index_k.device) for part in copy)
    want = msalab.index_select(index_q, index_k, top_k, **ends)
    got = msalab.index_select(index_q, index_k, top_k, coarse=coarse, **ends)
    return int((want >= 0).sum()), int((got != want).sum()), operations.backend_of(index_q).answered_by


def compare(rows: int, seed: int, device: str = "cuda", sizes=SIZES, groups: int = GROUPS) -> tuple[dict, Counter]:
    """{kind: {"rows", "ids", "others"}} of at least so many rows in all, and who answered how many calls."""
    generator = torch.Generator(device).manual_seed(seed)
    counts = {kind: {"rows": 0, "ids": 0, "others": 0} for kind in KINDS}
    done, answered = 0, Counter()
    while done < rows:
        for keys, queries, channels, block_size, top_k in sizes:
            for kind in KINDS:
                index_q, index_k = operands_of(kind, queries, keys, channels, groups, generator)
                ids, other, kernel = others(index_q, index_k, block_size, top_k)
                count = counts[kind]
                count["rows"] += queries * groups
                count["ids"] += ids
                count["others"] += other
                answered[kernel] += 1
                done += queries * groups
    return counts, answered


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=1e8, help="at least so many in all (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="of the values (default: %(default)s)")
    parser.add_argument("--out", metavar="FILE", help="where the counts of each kind go, in JSON")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU")
    began = time.monotonic()
    counts, answered = compare(int(options.rows), options.seed)
    total = {key: sum(count[key] for count in counts.values()) for key in ("rows", "ids", "others")}
    for kind, count in {**counts, "in all": total}.items():
        print(f"{kind:8} {count['rows']:12,} rows {count['ids']:14,} ids {count['others']:6,} others")
    print(", ".join(f"{calls} calls by {kernel}" for kernel, calls in answered.items()))
    print(f"seed {options.seed}, {time.monotonic() - began:.0f} s")
    if options.out:
        record = {"format": "msa-exact-ids", "format_version": 1, "commit": _msalab.commit,
                  "device": torch.cuda.get_device_name(), "seed": options.seed, "groups": GROUPS,
                  "sizes": [dict(zip(("keys", "queries", "channels", "block_size", "top_k"), size))
                            for size in SIZES], "calls": answered, "kinds": counts, **total}
        with open(options.out, "w") as file:
            json.dump(record, file)
            file.write("\n")
    return 1 if total["others"] else 0


if __name__ == "__main__":
    sys.exit(main())
