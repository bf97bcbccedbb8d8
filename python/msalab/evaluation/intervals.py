# SPDX-License-Identifier: MIT
"""Means over tokens or answers with percentile bootstrap intervals: whole clusters (documents,
exercises) are drawn with replacement, since tokens of one are alike."""

import numpy as np

RESAMPLES, SHARE = 1000, 0.95


def ratio_interval(sums, counts, seed: int) -> dict:
    """{"mean", "low", "high"}: sum(sums) / sum(counts) over clusters, and the interval of SHARE
    over resamples; without two clusters low and high are None, without a count the mean is."""
    sums, counts = np.asarray(sums, float), np.asarray(counts, float)
    kept = counts > 0
    sums, counts = sums[kept], counts[kept]
    if not len(counts):
        return {"mean": None, "low": None, "high": None}
    mean = float(sums.sum() / counts.sum())
    if len(counts) < 2:
        return {"mean": mean, "low": None, "high": None}
    drawn = np.random.default_rng(seed).integers(0, len(counts), (RESAMPLES, len(counts)))
    means = sums[drawn].sum(1) / counts[drawn].sum(1)
    low, high = np.quantile(means, [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return {"mean": mean, "low": float(low), "high": float(high)}
