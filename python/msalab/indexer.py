# SPDX-License-Identifier: MIT
"""Index Branches that msa-fit-indexer has fitted, as tensors (eq:msa-index-proj)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm

from .capture import fitted
from .capture.layer import CaptureError
from .nn import turn
from .operations import InputError
from .selectors import Rule


@dataclass
class IndexBranch:
    """Of one layer. Projections, rows are outputs: w_q [Hkv * didx, d_model], w_k [didx, d_model];
    norm_q, norm_k [didx] or None; RoPE's frequencies [rotary_dim / 2] float64. layer: whose hidden
    states it reads. int8: its queries and keys are int8."""

    layer: int
    groups: int
    w_q: Tensor
    w_k: Tensor
    norm_q: Tensor | None
    norm_k: Tensor | None
    frequencies: Tensor
    int8: bool = False
    rope: tuple = field(init=False, compare=False, repr=False)  # the frequencies on the host
    key_scale: float = field(init=False, compare=False, repr=False)
    _joined: dict = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self):
        self.rope = tuple(self.frequencies.tolist())
        # The root of the mean square of a key is 1 before its norm's weights; a turn leaves pairs as long as they are.
        self.key_scale = 127 / (math.sqrt(self.width) * float(self.norm_k.abs().max())) if self.int8 else 1.0

    def to(self, device: torch.device | str) -> IndexBranch:
        tensors = (self.w_q, self.w_k, self.norm_q, self.norm_k, self.frequencies)
        return IndexBranch(self.layer, self.groups, *(None if tensor is None else tensor.to(device)
                                                      for tensor in tensors), self.int8)

    def in_int8(self) -> IndexBranch:
        """InputError where keys may be of any size."""
        if self.norm_k is None:
            raise InputError(f"layer {self.layer}: its Index Branch has no norm, so its keys may be of any size; int8 "
                             "needs one scale for all of them")
        return replace(self, int8=True)

    def __call__(self, x: Tensor, turns: tuple[Tensor, Tensor], made: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """index_q [..., Hkv, didx] and index_k [..., didx], float32 or int8, of the hidden states x [..., d_model].
        turns: nn.rotation of their positions by the frequencies, float32. On a GPU the projection is of the type of x.
        made: the projection, where it was made already.

        int8: a query's largest number becomes 127, and of keys the largest that any may have: which blocks a query
        selects depends neither on its own scale nor on one that all keys share."""
        weight, norm = self.joined(x.dtype if x.is_cuda else torch.float32)
        made = linear(x.to(weight.dtype), weight) if made is None else made
        heads = made.float().unflatten(-1, (self.groups + 1, -1))
        if norm is not None:
            heads = rms_norm(heads, heads.shape[-1:], eps=fitted.EPSILON) * norm
        heads = turn(heads, *turns)
        index_q, index_k = heads[..., :-1, :], heads[..., -1, :]
        if not self.int8:
            return index_q, index_k
        largest = index_q.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny)
        return (index_q * (127 / largest)).round().to(torch.int8), (index_k * self.key_scale).round().to(torch.int8)

    def stored(self, heads: Tensor, dtype) -> Tensor:
        """Queries or keys that it gave, of dtype, but for those in int8."""
        return heads if self.int8 else heads.to(dtype)

    @property
    def width(self) -> int:
        """Channels of a head, didx."""
        return len(self.w_k)

    def joined(self, dtype):
        """Weights of `dtype` and norms of the heads of queries, and then of the keys."""
        found = self._joined.get(dtype)
        if found is None:
            norm = None if self.norm_q is None else torch.stack([self.norm_q] * self.groups + [self.norm_k])
            found = self._joined[dtype] = torch.cat([self.w_q, self.w_k]).to(dtype), norm
        return found


def rule(path: str | Path) -> Rule:
    """The blocks that the fit was for."""
    try:
        return Rule(**fitted.rule(path))
    except CaptureError as error:
        raise InputError(str(error)) from error


def read(path: str | Path) -> dict[int, IndexBranch]:
    """Layer -> its Index Branch, or the earlier layer's whose ids it takes, of what fitted.read takes.
    InputError naming the file and what is wrong."""
    try:
        found = fitted.read(path)
    except CaptureError as error:
        raise InputError(str(error)) from error

    def tensor(values):
        return None if values is None else torch.from_numpy(values)

    branches = {}
    for layer, one in found.items():
        branch = IndexBranch(layer, one.groups, *map(tensor, (one.w_q, one.w_k, one.norm_q, one.norm_k,
                                                              one.frequencies)))
        branches |= dict.fromkeys((layer, *one.shared_by), branch)
    return branches
