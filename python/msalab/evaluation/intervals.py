# SPDX-License-Identifier: MIT
"""Means over tokens or answers with percentile bootstrap intervals: whole units (documents, sequences,
exercises) are drawn with replacement, since tokens of one are alike."""

import numpy as np

from ..arguments import counted

RESAMPLES, SHARE = 1000, 0.95
FEWEST = 6  # units of an interval: of fewer it is hardly more than their least and greatest mean


def ratio_interval(sums, counts, seed: int) -> dict:
    """{"mean", "low", "high", "units"}: sum(sums) / sum(counts) over units, and the interval of SHARE
    over resamples; below FEWEST units low and high are None, without a count the mean is."""
    sums, counts = np.asarray(sums, float), np.asarray(counts, float)
    kept = counts > 0
    sums, counts = sums[kept], counts[kept]
    units = len(counts)
    mean = float(sums.sum() / counts.sum()) if units else None
    if units < FEWEST:
        return {"mean": mean, "low": None, "high": None, "units": units}
    return {"mean": mean, **_quantiles(lambda drawn: sums[drawn].sum(1) / counts[drawn].sum(1), units, seed)}


def difference_of_ratios(one, other, seed: int) -> dict:
    """The same of sum(sums) / sum(counts) of `one` less that of `other`, both (sums, counts) over the same units."""
    (sums, counts), (less, of) = ([np.asarray(values, float) for values in pair] for pair in (one, other))
    mean, units = float(sums.sum() / counts.sum() - less.sum() / of.sum()), len(counts)
    if units < FEWEST:
        return {"mean": mean, "low": None, "high": None, "units": units}
    return {"mean": mean, **_quantiles(lambda drawn: sums[drawn].sum(1) / counts[drawn].sum(1)
                                       - less[drawn].sum(1) / of[drawn].sum(1), units, seed)}


def _quantiles(of_drawn, units: int, seed: int) -> dict:
    drawn = np.random.default_rng(seed).integers(0, units, (RESAMPLES, units))
    low, high = np.quantile(of_drawn(drawn), [(1 - SHARE) / 2, (1 + SHARE) / 2])
    return {"low": float(low), "high": float(high), "units": units}


def interval_of(row: dict, key: str, units: str = "units") -> dict:
    """Of an estimate in a row of a table."""
    low, high = (None if row[f"{key}{end}"] != row[f"{key}{end}"] else row[f"{key}{end}"] for end in ("_low", "_high"))
    return {"mean": row[key], "low": low, "high": high, "units": int(row[units])}


def opposite(one: dict) -> dict:
    """Of the difference the other way round."""
    low, high = one["low"], one["high"]
    return one | {"mean": -one["mean"], "low": None if high is None else -high, "high": None if low is None else -low}


def interval_text(one: dict, what: str, digits: int = 4) -> str:
    """"+0.0210 to +0.0330, 8 documents", or why there is none."""
    if None not in (one["low"], one["high"]):
        return f"{one['low']:+.{digits}f} to {one['high']:+.{digits}f}, {counted(one['units'], what)}"
    return f"none: {counted(one['units'], what)}, fewer than {FEWEST}"
