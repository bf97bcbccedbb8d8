# SPDX-License-Identifier: MIT
"""Selectors that need no training and work while a model runs: from queries and the keys so far
they score key blocks. Rules are those of core/select/README.md, on tensors of PyTorch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import operations
from .operations import InputError
from .rule import Rule

SCORES_AT_ONCE = 1 << 25  # in memory, [queries, Hkv, B]: all queries of 32K tokens, whose layout attention has, too


@dataclass(frozen=True)
class Choice:
    """How a layer selects; the selector is a name, "index" and "own" among them, or a function. Where layers share ids,
    only some of them select, and the others take those of the last one before them: the first of `every` layers of the
    model, or the layers `leaders`."""

    selector: str | Callable
    rule: Rule
    every: int = 1
    leaders: tuple = ()


def sharing(selector) -> tuple[str | Callable, dict]:
    """The selector of NAME, NAME:every=4 or NAME:leaders=0+3+11, and these parts of its Choice."""
    if callable(selector) or ":" not in selector:
        return selector, {}
    name, _, option = selector.partition(":")
    what, _, value = option.partition("=")
    numbers = [int(one) for one in value.split("+") if one.isdecimal()]
    if numbers and "+".join(map(str, numbers)) == value and numbers == sorted(set(numbers)):
        if what == "every" and len(numbers) == 1 and numbers[0] >= 2:
            return name, {"every": numbers[0]}
        if what == "leaders":
            return name, {"leaders": tuple(numbers)}
    raise InputError(f"selector is {selector!r}; layers share ids by {name}:every=N, N at least 2, or "
                     f"{name}:leaders=A+B+..., numbers of layers in ascending order")


def _whole_blocks(k: Tensor, block_size: int) -> Tensor:
    """[blocks, block_size, Hkv, dh] of the keys k [Nk, Hkv, dh]. A block that is not whole is the
    last query's own: it is always kept, and its score is read by nobody."""
    whole = len(k) // block_size
    return k[:whole * block_size].unflatten(0, (whole, block_size)).float()


def _products(q: Tensor, vectors: Tensor, blocks: int) -> Tensor:
    """Scores [n, Hkv, blocks] of q [n, Hkv, width] and vectors [whole blocks, Hkv, width]."""
    scores = q.new_zeros((*q.shape[:2], blocks))
    scores[:, :, :len(vectors)] = torch.einsum("nhd,bhd->nhb", q, vectors)
    return scores


def _by_group(q: Tensor, kv_heads: int) -> Tensor:
    return q.float().unflatten(1, (kv_heads, -1))


def oracle(q, k, block_size: int, **attention) -> Tensor:
    """The probability of each block in dense attention, mean over the group's heads."""
    return operations.block_mass(q, k, block_size=block_size, cu_seqlens_q=[0, len(q)],
                                 cu_seqlens_k=[0, len(k)], **attention)


def mean_key(q, k, block_size: int, **_) -> Tensor:
    """q . mean of the block's keys, summed over the group's heads (MoBA)."""
    vectors = _whole_blocks(k, block_size).mean(1)
    return _products(_by_group(q, k.shape[1]).sum(2), vectors, -(-len(k) // block_size))


def quest(q, k, block_size: int, **_) -> Tensor:
    """An upper bound of q . k in the block, summed over the group's heads (Quest)."""
    keys, heads = _whole_blocks(k, block_size), _by_group(q, k.shape[1])
    vectors = torch.cat([keys.amax(1), keys.amin(1)], -1)
    parts = torch.cat([heads.clamp(min=0).sum(2), heads.clamp(max=0).sum(2)], -1)
    return _products(parts, vectors, -(-len(k) // block_size))


def window(q, k, block_size: int, **_) -> Tensor:
    """The newest blocks, and the first one where top_k leaves it room (held_first)."""
    blocks = -(-len(k) // block_size)
    newest = torch.arange(blocks, dtype=torch.float32, device=q.device)
    return newest.expand(len(q), k.shape[1], blocks).contiguous()


def held_first(rule: Rule, selector) -> int:
    """Oldest blocks that a selector always keeps: a window has the first one where top_k leaves it room."""
    room = min(1, rule.top_k - rule.forced_local)
    return max(rule.forced_first, room) if selector in ("window", window) else rule.forced_first


SCORES = {"oracle": oracle, "mean-key": mean_key, "quest": quest, "window": window}


def find(selector):
    """The function of a name; a function is its own: scores [n, Hkv, B] float32 of the queries q
    [n, Hq, dh], the last of which sits on the last of the keys k [Nk, Hkv, dh]."""
    if callable(selector):
        return selector
    if selector not in SCORES:
        raise InputError(f"selector is {selector!r}; those that work in a running model are: "
                         f"{', '.join(SCORES)}")
    return SCORES[selector]


@torch.no_grad()
def select(selector: str | Callable[..., Tensor], q: Tensor, k: Tensor, rule: Rule, **attention: Any) -> Tensor:
    """Blocks [n, Hkv, top_k] int32 of the newest n tokens q [n, Hq, dh] of a sequence with keys k
    [Nk, Hkv, dh]. attention: softmax_scale, sinks and softcap of the layer, which oracle reads."""
    score, begin = find(selector), held_first(rule, selector)
    first, parts = len(k) - len(q), []
    at_once = max(1, SCORES_AT_ONCE // (k.shape[1] * max(1, -(-len(k) // rule.block_size))))
    for at in range(0, len(q), at_once):
        some = q[at:at + at_once]
        seen = k[:first + at + len(some)]
        parts.append(operations.select_blocks(
            score(some, seen, rule.block_size, **attention).contiguous(), rule.top_k,
            forced_first=begin, forced_local=rule.forced_local,
            block_size=rule.block_size, cu_seqlens_q=[0, len(some)], cu_seqlens_k=[0, len(seen)]))
    return torch.cat(parts)
