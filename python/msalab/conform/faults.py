# SPDX-License-Identifier: MIT
"""Six faults that were public in kernels and engines of MSA and its kin, and that changed results without an error,
each planted in a copy of the reference. `python -m msalab.conform --call msalab.conform.faults:NAME` must fail, and the
kit names the fault."""

import numpy as np

from .reference import NONE, Reference


class HeadMajorIds(Reference):
    """ids that lie [Hkv, Nq, k] are read as [Nq, Hkv, k], which no check of shapes finds when Nq = Hkv"""

    def read_ids(self, ids):
        return ids.transpose(1, 0, 2) if ids.shape[0] == ids.shape[1] else np.asarray(ids)


class StridedIds(Reference):
    """ids that are a part of a wider buffer are read as if they were contiguous"""

    def read_ids(self, ids):
        if ids.flags.c_contiguous:
            return ids
        flat = np.lib.stride_tricks.as_strided(ids, (ids.size,), (ids.itemsize,))  # within the buffer: it is wider
        return flat.reshape(ids.shape).copy()


class StaleIndexKeys(Reference):
    """behind a hit of a prefix that ends within a page, keys and values of that page are written anew, but its index
    keys stay those of the request before"""

    def append(self, name, tokens, places, rows, given):
        if name == "index_k":
            held = (given["lengths"] - np.diff(given["cu_seqlens_q"])) % given["page_size"]
            kept = np.concatenate([np.arange(new) + before < given["page_size"] if before else np.zeros(new, bool)
                                   for before, new in zip(held, np.diff(given["cu_seqlens_q"]))])
            places, rows = places[~kept], rows[~kept]
        super().append(name, tokens, places, rows, given)


class CoarseExponential(Reference):
    """exponentials are up to 3 % wrong: 2^x by a straight line between powers of two"""

    precision = "bfloat16"

    def exp(self, x):
        whole = np.floor(x / np.log(2))
        return np.exp2(whole) * (1 + x / np.log(2) - whole) * 0.97


class PaddedKeysScoreZero(Reference):
    """keys that are padding or not yet visible score 0 and not -inf: zeros win where all scores are negative"""

    def masked(self, products, count):
        return np.where(np.arange(products.shape[1]) < count, products, 0.0)

    def candidates(self, scores, blocks):
        return list(range(len(scores)))

    def choose(self, given, i, scores, blocks):
        scores = np.where(scores == -np.inf, 0.0, scores)  # blocks of padding
        return [b for b in super().choose(given, i, scores, blocks) if b < blocks]

    def support(self, given, row, first, count, length):
        tokens = super().support(given, row, first, count, length)
        if len(tokens) and max(row) == (length - 1) // given["block_size"]:
            tokens = np.concatenate([tokens, np.full(-length % given["block_size"], NONE)])
        return tokens

    def rows(self, operand, tokens, r):
        return np.where((tokens == NONE)[:, None], 0.0, operand[tokens, r])


class TiesByBatch(Reference):
    """equal scores go to the lower id in the first sequence of a batch and to the higher one in the others"""

    def tie(self, given, i, block):
        return block if i < given["cu_seqlens_q"][1] else -block


head_major_ids = HeadMajorIds()
strided_ids = StridedIds()
stale_index_keys = StaleIndexKeys()
coarse_exponential = CoarseExponential()
padded_keys_score_zero = PaddedKeysScoreZero()
ties_by_batch = TiesByBatch()

FAULTS = {"head-major ids": head_major_ids, "strided ids": strided_ids, "stale index keys": stale_index_keys,
          "coarse exponential": coarse_exponential, "padded keys score 0": padded_keys_score_zero,
          "ties by batch": ties_by_batch}
