# SPDX-License-Identifier: MIT
"""Bounds of an int8 index: what they leave open, on operands whose answer is known."""

import int8_candidates
import numpy as np

BLOCK, TOP_K = 16, 4


def measured(q, k):
    return int8_candidates.measure(q, k, np.arange((TOP_K + 1) * BLOCK, len(k)), BLOCK, TOP_K)


def test_every_wrong_id_is_a_candidate_to_be_scored_again():
    rng = np.random.default_rng(20261126)
    q = rng.standard_normal((400, 2, 32)).astype(np.float32)
    k = rng.standard_normal((400, 32)).astype(np.float32)
    wrong, sure, again, _ = measured(q, k).T
    assert wrong.sum() > 0  # int8 alone errs on such rows
    assert np.all(wrong <= again)
    assert np.all(sure <= TOP_K - 1) and np.all(sure + again >= TOP_K - 1)


def test_integers_are_sure_where_scores_differ():
    """Values that int8 holds exactly have no error, so that only ties are scored again."""
    k = np.zeros((160, 8), np.float32)
    k[:, 0] = 127 - np.arange(160) // BLOCK  # a falling score by block
    k[::BLOCK, 1] = 127  # every block's scale is 1
    q = np.zeros((160, 1, 8), np.float32)
    q[:, 0, 0] = 127
    wrong, sure, again, marked = measured(q, k).T
    assert not marked.any()
    assert np.all(wrong == 0) and np.all(sure == TOP_K - 1) and np.all(again == 0)
    k[:, 0] = 100  # all blocks tie
    wrong, sure, again, marked = measured(q, k).T
    assert np.all(sure == 0) and np.all(again >= TOP_K) and not marked.any()
    tie = np.tile(k[:1], ((int8_candidates.LISTED[0] + 2) * BLOCK, 1))  # more than are listed
    last = np.array([len(tie) - 2 * BLOCK, len(tie) - 1])
    rows = int8_candidates.measure(np.tile(q[:1], (len(tie), 1, 1)), tie, last, BLOCK, TOP_K)
    assert list(rows.T[3]) == [0, 1]


def test_listed_blocks_include_all_candidates():
    """The kernels' bound is a lower bound of the n-th best lower bound, and close to it."""
    rng = np.random.default_rng(20261127)
    for blocks in (5, 100, 128, 129, 1000):
        low = rng.standard_normal(blocks)
        high = low + rng.uniform(0.1, 0.3, blocks)
        candidates = np.count_nonzero(high >= np.sort(low)[-TOP_K])
        listed = int8_candidates.listed_by_kernels(low, high, TOP_K, False)
        assert candidates <= listed <= 2 * candidates
        assert blocks > 128 or listed == candidates
