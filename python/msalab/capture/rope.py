# SPDX-License-Identifier: MIT
"""Rotary position embedding, as core/indexer/projection.h has it."""

from __future__ import annotations

import numpy as np


def positions(cu_seqlens) -> np.ndarray:
    """Of every packed token in its sequence, int64 [N]."""
    lengths = np.diff(cu_seqlens)
    return np.arange(cu_seqlens[-1]) - np.repeat(cu_seqlens[:-1], lengths)


def frequencies(rotary_dim: int, theta: float) -> np.ndarray:
    """Of plain RoPE: theta^(-2c/rotary_dim), [rotary_dim/2]."""
    half = rotary_dim // 2
    return theta ** (-np.arange(half) / half)


def apply_rope(heads: np.ndarray, position: np.ndarray, inv_freq: np.ndarray, factor: float = 1.0,
               interleaved: bool = False) -> np.ndarray:
    """heads [N, H, d]: turns the first 2 len(inv_freq) channels of every head, channel c with
    channel c + len(inv_freq) (interleaved: 2c with 2c + 1), by position * inv_freq[c], and
    multiplies them by `factor`. Computed in double precision, returned in the type of `heads`."""
    half = len(inv_freq)
    turn = factor * np.exp(1j * position[:, None, None] * np.float64(inv_freq))  # [N, 1, half]
    rotated = heads.astype(np.float64)
    pair = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else \
           (slice(0, half), slice(half, 2 * half))
    turned = (rotated[..., pair[0]] + 1j * rotated[..., pair[1]]) * turn
    rotated[..., pair[0]], rotated[..., pair[1]] = turned.real, turned.imag
    return rotated.astype(heads.dtype)
