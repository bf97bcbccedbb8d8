# SPDX-License-Identifier: MIT
"""Layouts of selected blocks that other libraries use, to and from ours: [Nq, Hkv, k] int32,
relative to the query's sequence, ascending, padded with -1 at the end. Results are of the kind of the
ids, numpy arrays or tensors on their device; they are computed by numpy."""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable, TypeVar, cast

import numpy as np

from .operations import InputError, _Host, _kind, _shape, integers

__all__ = ["build_k2q_csr", "ids_from_packed", "ids_heads_first", "sort_ids"]

_PADDING = np.iinfo(np.int32).max
_Function = TypeVar("_Function", bound=Callable[..., Any])


def _of_any_kind(function: _Function) -> _Function:
    """The function of numpy's ids takes tensors, too, and then returns tensors."""
    @wraps(function)
    def call(ids: Any, *arguments: Any, **options: Any) -> Any:
        kind = _kind(ids)

        def like_ids(found):
            return kind.from_numpy(found).to(ids.device) if kind is not _Host else found

        found = function(np.asarray(kind.on_host(ids)), *arguments, **options)
        return tuple(map(like_ids, found)) if isinstance(found, tuple) else like_ids(found)
    return cast(_Function, call)


@_of_any_kind
def sort_ids(ids: Any) -> Any:
    """Ours from rows in any order, padded anywhere with any negative number. Repeats in a row
    raise InputError naming query and group."""
    _shape("ids", ids, "Nq", "Hkv", "k")
    rows = np.sort(np.where(ids < 0, _PADDING, ids), axis=2)
    repeats = (rows[:, :, 1:] == rows[:, :, :-1]) & (rows[:, :, 1:] != _PADDING)
    if repeats.any():
        query, group, slot = np.argwhere(repeats)[0]
        raise InputError(f"ids[{query}, {group}] holds block {rows[query, group, slot]} twice")
    return np.where(rows == _PADDING, -1, rows).astype(np.int32)


@_of_any_kind
def ids_heads_first(ids: Any) -> Any:
    """[Hkv, Nq, k] from ours, or ours from it: the two outer axes change places."""
    _shape("ids", ids, "Nq", "Hkv", "k")
    return np.ascontiguousarray(ids.transpose(1, 0, 2))


@_of_any_kind
def ids_from_packed(ids: Any, cu_seqlens_q: Any, cu_seqlens_k: Any, block_size: int = 128) -> Any:
    """Ours from ids that number the blocks of all sequences through: those of a sequence begin
    where those of the one before end. An id of another sequence raises InputError."""
    ids = sort_ids(ids)
    queries, keys = (integers(name, lens) for name, lens in
                     (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)))
    blocks = -(-np.diff(keys) // block_size)
    first = np.concatenate([[0], np.cumsum(blocks)])
    sequence = np.repeat(np.arange(len(blocks)), np.diff(queries))
    if len(sequence) != len(ids):
        raise InputError(f"ids has {len(ids)} queries, cu_seqlens_q ends at {queries[-1]}")
    begin, count = first[sequence][:, None, None], blocks[sequence][:, None, None]
    outside = (ids >= 0) & ((ids < begin) | (ids >= begin + count))
    if outside.any():
        at = tuple(np.argwhere(outside)[0])
        raise InputError(f"ids{list(map(int, at))} is {ids[at]}, a block of another sequence: "
                         f"those of sequence {sequence[at[0]]} are {first[sequence[at[0]]]} to "
                         f"{first[sequence[at[0]] + 1] - 1}")
    return np.where(ids < 0, -1, ids - begin).astype(np.int32)


@_of_any_kind
def build_k2q_csr(ids: Any, blocks: Any) -> Any:
    """The reverse index: (starts [Hkv * blocks + 1] int64, queries [total] int32). The queries of
    group g that selected block b are queries[starts[g * blocks + b]:starts[g * blocks + b + 1]],
    ascending. ids are of one sequence."""
    count, groups, _ = _shape("ids", ids, "Nq", "Hkv", "k")
    if ids.size and ids.max() >= blocks:
        raise InputError(f"ids holds block {ids.max()}, blocks is {blocks}")
    query, group, slot = np.nonzero(ids >= 0)
    row = group * blocks + ids[query, group, slot]
    order = np.argsort(row, kind="stable")
    starts = np.zeros(groups * blocks + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=groups * blocks), out=starts[1:])
    return starts, query[order].astype(np.int32)
