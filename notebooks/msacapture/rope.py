# SPDX-License-Identifier: MIT
"""Rotary position embedding, as core/projection.h has it."""

from __future__ import annotations

import numpy as np


def positions(cu_seqlens) -> np.ndarray:
    """Of every packed token in its sequence, int64 [N]."""
    lengths = np.diff(cu_seqlens)
    return np.arange(cu_seqlens[-1]) - np.repeat(cu_seqlens[:-1], lengths)


def apply_rope(heads: np.ndarray, position: np.ndarray, rotary_dim: int, theta: float,
               interleaved: bool = False) -> np.ndarray:
    """heads [N, H, d]: turns the first `rotary_dim` channels of every head, channel c with channel
    c + rotary_dim/2 (interleaved: 2c with 2c + 1), by position * theta^(-2c/rotary_dim). Computed
    in double precision, returned in the type of `heads`."""
    half = rotary_dim // 2
    angle = position[:, None, None] * theta ** (-np.arange(half) / half)  # [N, 1, half]
    turn = np.exp(1j * angle)
    rotated = heads.astype(np.float64)
    pair = (slice(0, rotary_dim, 2), slice(1, rotary_dim, 2)) if interleaved else \
           (slice(0, half), slice(half, rotary_dim))
    turned = (rotated[..., pair[0]] + 1j * rotated[..., pair[1]]) * turn
    rotated[..., pair[0]], rotated[..., pair[1]] = turned.real, turned.imag
    return rotated.astype(heads.dtype)
