# SPDX-License-Identifier: MIT
"""Queries, keys and values of a running model as e4m3, on any device: the bits of msalab.store_e4m3."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from .arguments import refuse_unknown
from .operations import InputError

SCALED, UNSCALED = "e4m3", "e4m3:unscaled"  # keys and values with scales of blocks, and without any
ELEMENTS = (SCALED, UNSCALED)
LARGEST = 448.0
LEAST_SCALE, MOST_SCALE = 2.0 ** -40, 2.0 ** 40  # core/number/operand_scales.h


def check_element(element) -> None:
    """InputError unless it is one of ELEMENTS, or None."""
    if element is not None and element not in ELEMENTS:
        raise InputError(refuse_unknown([str(element)], ELEMENTS, "element is"))


def block_numbers(cu_seqlens_k, block_size: int, device=None) -> tuple[Tensor, int]:
    """[Nk] int64, the block of each key, counted over all sequences, each of which begins with a block; and how many
    blocks there are."""
    parts, blocks = [torch.empty(0, dtype=torch.int64, device=device)], 0
    for begin, end in pairwise(cu_seqlens_k):
        parts.append(torch.arange(end - begin, device=device) // block_size + blocks)
        blocks += -(-(end - begin) // block_size)
    return torch.cat(parts), blocks


class Stored(NamedTuple):
    """Operands of sparse_attention in e4m3, float8_e4m3fn, with their scales of float32 or None, without which they are 1."""
    q: Tensor
    k: Tensor
    v: Tensor
    scales: tuple[Tensor | None, Tensor | None, Tensor | None]


def stored(q: Tensor, k: Tensor, v: Tensor, element: str, numbers: tuple[Tensor, int] | None) -> Stored:
    """q [Nq, Hq, dh], k and v [Nk, Hkv, dh] in one of ELEMENTS; no gradient passes. numbers: of SCALED, block_numbers()."""
    q, k, v = q.detach(), k.detach(), v.detach()
    q, q_scales = rows_in_e4m3(q)
    if element == UNSCALED:
        return Stored(q, nearest(k), nearest(v), (q_scales, None, None))
    (k, k_scales), (v, v_scales) = (blocks_in_e4m3(heads, *numbers) for heads in (k, v))
    return Stored(q, k, v, (q_scales, k_scales, v_scales))


def read(of: Stored, cu_seqlens_k, block_size: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The values that stored() q, k and v stand for, e4m3 times scale in float32, rounded to the dtype."""
    q_scales, k_scales, v_scales = of.scales
    if k_scales is not None:
        numbers, _ = block_numbers(cu_seqlens_k, block_size, of.k.device)
        k_scales, v_scales = k_scales[numbers], v_scales[numbers]
    return tuple((values.float() if scales is None else values.float() * scales[..., None]).to(dtype)
                 for values, scales in ((of.q, q_scales), (of.k, k_scales), (of.v, v_scales)))


def rows_in_e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [N, heads, dh] of any type as float8_e4m3fn, and the scales [N, heads] float32 of its rows and heads."""
    x = x.float()
    scales = _scales(_magnitudes(x))
    return nearest(x / scales[..., None]), scales


def blocks_in_e4m3(x: Tensor, numbers: Tensor, blocks: int) -> tuple[Tensor, Tensor]:
    """Likewise of keys or values [Nk, Hkv, dh], with the scales [blocks, Hkv] of their blocks, which block_numbers
    gives."""
    x = x.float()
    at = numbers[:, None].expand(x.shape[:2])
    largest = x.new_zeros((blocks, x.shape[1])).scatter_reduce(0, at, _magnitudes(x), "amax")
    scales = _scales(largest)
    return nearest(x / scales[numbers][..., None]), scales


def nearest(x: Tensor) -> Tensor:
    """As float8_e4m3fn, ties to even; beyond 448 it becomes 448, and NaN stays."""
    return x.float().clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)


def _magnitudes(x: Tensor) -> Tensor:
    """The largest finite one of each head [N, heads]."""
    return torch.where(x.isfinite(), x.abs(), 0.0).amax(-1)


def _scales(largest: Tensor) -> Tensor:
    # By a tensor: a GPU multiplies by the reciprocal of a number.
    return (largest / torch.full_like(largest, LARGEST)).clamp(LEAST_SCALE, MOST_SCALE)
