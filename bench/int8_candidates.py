#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""How many blocks an int8 index would have to score again for the ids of its operands.

usage: int8_candidates.py FILE... [--block-size 64] [--top-k 16] [--queries 512]

FILE has layers with index_q and index_k, as msa-fit-indexer's indexer.h5. With q' and k' the int8
values times their scales (core/number/operand_scales.h), by Cauchy and Schwarz

    |q.k - q'.k'| <= |q'| |k - k'| + |q - q'| |k|,

so that the score of a block, a maximum over its keys, is known to within a bound of (row, block): both
maxima are of the block. A block is sure where less than k upper bounds of others exceed its lower bound,
out where k lower bounds exceed its upper bound, and else a candidate, to be scored again. The query's own
block is kept without a score. Queries are evenly spread over those with more than k visible blocks. A row
is marked, and answered without the copy, if the kernels would list too many blocks
(gpu/kernels/index_candidates.cu): those whose upper bound reaches the k-th largest of some best lower bounds,
each of every 128th block, or every 256th of more than 1024 blocks.
"""

import argparse

import numpy as np

from msalab.capture.reader import ActivationsReader

INT8 = 127.0
# Of up to WARP_BLOCKS blocks, and of more: how many are listed at most, and the strides of best bounds.
WARP_BLOCKS = 1024
LISTED = (512, 1024)
STRIDES = (128, 256)


def as_float(values) -> np.ndarray:
    """float32; uint16 are bf16."""
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values.astype(np.float32)


def rounded(values: np.ndarray, axes) -> np.ndarray:
    """The values after rounding to int8 with one scale over `axes`."""
    scale = np.maximum(np.abs(values).max(axes, keepdims=True) / INT8, 1e-30)
    return np.rint(values / scale) * scale


def listed_by_kernels(low: np.ndarray, high: np.ndarray, keep: int, many: bool) -> int:
    """How many blocks the kernels list for `keep` places, by the bounds of the scored blocks."""
    rows = -(-len(low) // STRIDES[many])
    padded = np.full(rows * STRIDES[many], -np.inf)
    padded[:len(low)] = low
    best = padded.reshape(rows, -1).max(0)
    return int(np.count_nonzero(high >= np.partition(best, -keep)[-keep]))


def measure(q: np.ndarray, k: np.ndarray, queries: np.ndarray, block_size: int, top_k: int):
    """Rows of (wrong, sure, candidates, marked) for one sequence, q [N, H, d], k [N, d]: ids that int8
    alone gets wrong, blocks that are surely in, blocks to score again, whether the row is marked."""
    blocks = -(-len(k) // block_size)
    padded = np.zeros((blocks * block_size, k.shape[1]), np.float32)
    padded[:len(k)] = k
    keys = padded.reshape(blocks, block_size, -1)
    coarse = rounded(keys, (1, 2))
    key_norm = np.linalg.norm(keys, axis=2).max(1)
    key_error = np.linalg.norm(keys - coarse, axis=2).max(1)
    keep, rows = top_k - 1, []
    for at in queries:
        own = at // block_size  # scored blocks are those before it, all of them whole
        for head in q[at]:
            near = rounded(head, 0)
            exact = (keys[:own] @ head).max(1)
            score = (coarse[:own] @ near).max(1)
            bound = (np.linalg.norm(near) * key_error + np.linalg.norm(head - near) * key_norm)[:own]
            # Sums of d products in float32 round by at most d 2^-24 |q| |k|.
            rounding = len(head) * 2.0**-24 * np.linalg.norm(head) * key_norm[:own]
            assert np.all(np.abs(score - exact) <= bound * (1 + 1e-6) + 4 * rounding)
            low, high = score - bound, score + bound
            sure = low > np.partition(high, own - keep - 1)[own - keep - 1]
            out = high < np.partition(low, own - keep)[own - keep]
            wrong = np.setdiff1d(np.argsort(-exact)[:keep], np.argsort(-score)[:keep])
            again = own - sure.sum() - out.sum()
            many = blocks > WARP_BLOCKS
            marked = listed_by_kernels(low, high, keep, many) > LISTED[many]
            rows.append((len(wrong), sure.sum(), again, marked))
    return np.array(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE")
    parser.add_argument("--block-size", type=int, default=64)
    parser.add_argument("--top-k", type=int, default=16)
    parser.add_argument("--queries", type=int, default=512)
    options = parser.parse_args()
    print("layer  wrong ids  sure  scored again: mean  99 %  most   rows marked   of visible")
    for path in options.files:
        with ActivationsReader(path) as file:
            length = int(file.cu_seqlens[1])  # of the first sequence
            for number in file.layers:
                layer = file.layer(number)
                q, k = as_float(layer.index_q)[:length], as_float(layer.index_k)[:length]
                first = (options.top_k + 1) * options.block_size
                queries = np.linspace(first, length - 1, options.queries).astype(int)
                rows = measure(q, k.reshape(length, -1), queries, options.block_size,
                               options.top_k)
                wrong, sure, again, marked = rows.T
                print(f"{number:5}  {wrong.mean() / (options.top_k - 1):9.4f}  {sure.mean():4.1f}  "
                      f"{again.mean():18.1f}  {np.percentile(again, 99):4.0f}  {again.max():4}   "
                      f"{marked.mean():11.4f}   {np.mean(queries // options.block_size):10.1f}")


if __name__ == "__main__":
    main()
