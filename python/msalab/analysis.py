# SPDX-License-Identifier: MIT
"""What a selection of key blocks keeps and loses, and where attention lies: the measures that
msa-analyze reports, on arrays. They are computed by the same code, so that the same blocks and
probabilities give the same numbers; their names, units and definitions are those of `metrics()`,
from which the help of each function takes them.

    mass = msalab.block_mass(q, k, block_size=64)
    ids = msalab.index_select(index_q, index_k, 16, block_size=64)
    kept = msalab.analysis.recall(ids, mass, block_size=64)
    kept["mass_kept"].mean()      # of the layer: the mean over groups

Letters in shapes are those of `help(msalab)`. ids are what msalab.index_select returns: other
rows raise InputError naming query, group and rule. Tensors on a GPU are copied to the CPU, where
the measures are computed in double precision. Values are float64 arrays, or tensors on the CPU
where the inputs are tensors; no gradient goes through them.

Values are means over queries, one of each group or head; a layer's number is their mean. A query
that sees no key counts nowhere. A query whose visible blocks all fit into k is trivial, since every
selection keeps everything: recall, output_error and group_overlap leave it out unless all_rows is
True. The mean of no query is NaN, and a NaN that a query sees makes every mean NaN that counts it.
cu_seqlens_q, cu_seqlens_k, layout and block_size are those of the operations; without lengths all
tokens are one sequence with as many keys as queries, or, where k is given, its keys. For a sample
of queries give layout=msalab.layout(cu_seqlens_q, cu_seqlens_k, query_positions).
"""

from __future__ import annotations

import inspect
from typing import Any, Callable, NamedTuple, TypeVar

import numpy as np

from . import operations
from .operations import InputError, _kind, _msalab, _positive, _shape, integers

__all__ = ["Metric", "entropy", "gini", "group_overlap", "layer_overlap", "lorenz_curve", "metrics", "output_error",
           "popularity", "recall", "sink_mass"]


class Metric(NamedTuple):
    """What a measure is called in files, its heading in tables, its unit, what its values are one
    of, and its definition."""

    name: str
    heading: str
    unit: str
    axis: str
    definition: str


_METRICS = {line[0]: Metric(*line) for line in _msalab.metrics}


def metrics() -> dict[str, Metric]:
    """Every measure that the programs report, by name, in the order of the documentation."""
    return dict(_METRICS)


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _measures(*names: str) -> Callable[[_Function], _Function]:
    """Puts the definitions of these metrics at the end of a function's help."""
    def add(function: _Function) -> _Function:
        lines = [f"{name} ({_METRICS[name].unit}): {_METRICS[name].definition}." for name in names]
        function.__doc__ = "\n".join([inspect.getdoc(function) or "", "", *lines])
        return function
    return add


def _values(like, values, *shape, dtype=np.float64):
    return _kind(like).from_numpy(np.asarray(values, dtype).reshape(shape))


def _host(array, dtype=None):
    return _kind(array).on_host(array, dtype)


def _ids_problem(ids, block_size, cu_seqlens_q, cu_seqlens_k, layout, name="ids"):
    queries, groups, _ = _shape(name, ids, "Nq", "Hkv", "k")
    return operations._groups_problem(queries, groups, block_size, cu_seqlens_q, cu_seqlens_k,
                                      layout)


@_measures(*_msalab.recall_columns)
def recall(ids: Any, mass: Any, oracle_ids: Any = None, *, exclude_local: bool = False, all_rows: bool = False,
           block_size: int = 128, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, layout: Any = None) -> Any:
    """What a selection keeps of dense attention: a dictionary of the values [Hkv] of each group.

    ids [Nq, Hkv, k] int32; mass [Nq, Hkv, B] float32, what msalab.block_mass returns.
    oracle_ids [Nq, Hkv, any] int32: the blocks that should have been chosen; where absent, those
    that msalab.select_blocks chooses by mass, k of them. exclude_local leaves the query's own
    block, which is always chosen, out of the oracle's in the two recalls. Where the oracle's blocks
    hold no mass, nothing was lost: recall 1.
    """
    p = _ids_problem(ids, block_size, cu_seqlens_q, cu_seqlens_k, layout)
    if oracle_ids is None:
        oracle_ids = operations.select_blocks(
            mass, ids.shape[2], block_size=block_size, cu_seqlens_q=cu_seqlens_q,
            cu_seqlens_k=cu_seqlens_k, layout=layout)
    found = _msalab.recall(p, _host(ids), _host(oracle_ids), _host(mass),
                           bool(exclude_local), bool(all_rows))
    return {name: _values(ids, values, -1)
            for name, values in zip(_msalab.recall_columns, found)}


@_measures("output_error")
def output_error(out: Any, dense_out: Any, top_k: int, *, all_rows: bool = False, block_size: int = 128,
                 cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, layout: Any = None) -> Any:
    """How far sparse attention's output is from dense attention's: the values [Hq] of each head.

    out, dense_out [Nq, Hq, dh] float32 or, on a GPU, bfloat16; top_k: the blocks k that the
    selection may keep, which says what queries are trivial. A head whose dense output is 0 on every
    counted query has NaN.
    """
    queries, heads, head_dim = _shape("out", out, "Nq", "Hq", "dh")
    p = operations._groups_problem(queries, heads, block_size, cu_seqlens_q, cu_seqlens_k, layout,
                                   head_dim)
    found = _msalab.output_error(p, _host(out, "float32"), _host(dense_out, "float32"),
                                 _positive("top_k", top_k), bool(all_rows))
    return _values(out, found, -1)


def _attend(q, k, ids, options):
    """The mean key and lse of each query and head: attention with the keys as values."""
    if ids is None:
        options = {name: value for name, value in options.items() if name != "block_size"}
        return operations.dense_attention(q, k, k, return_softmax_lse=True, **options)
    return operations.sparse_attention(q, k, k, ids, return_softmax_lse=True, **options)


@_measures("sink_mass_dense", "sink_mass_sparse")
def sink_mass(q: Any, k: Any, ids: Any = None, *, tokens: int = 1, softmax_scale: float | None = None,
              sinks: Any = None, window: int | None = None, softcap: float | None = None, block_size: int = 128,
              cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, layout: Any = None, backend: str = "auto") -> Any:
    """The probability on the first `tokens` tokens of each sequence: the values [Hq] of each head,
    over all queries that see a key. In dense attention, or, with ids [Nq, Hkv, k] int32, in
    attention over these blocks, where other tokens have probability 0.

    q, k, softmax_scale, sinks, window, softcap, block_size and backend: as in
    msalab.sparse_attention, which is called for the sums of exponentials. NaN where logits are
    so large that the rounding of these sums alone moves a probability by more than 1 %.
    """
    options = dict(softmax_scale=softmax_scale, sinks=sinks, window=window, softcap=softcap,
                   block_size=block_size, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                   layout=layout)
    tokens = _positive("tokens", tokens)
    _, lse = _attend(q, k, ids, {**options, "backend": backend})
    del options["sinks"]  # they are in the lse
    found = _msalab.sink_mass(_attention_problem(q, k, options), _host(q, "float32"),
                              _host(k, "float32"), _host(lse), _host(ids), tokens)
    return _values(q, found, -1)


@_measures("entropy_dense", "entropy_sparse")
def entropy(q: Any, k: Any, ids: Any = None, *, softmax_scale: float | None = None, sinks: Any = None,
            window: int | None = None, softcap: float | None = None, block_size: int = 128, cu_seqlens_q: Any = None,
            cu_seqlens_k: Any = None, layout: Any = None, backend: str = "auto") -> Any:
    """The entropy of attention: the values [Hq] of each head, over all queries that see a key. Of
    dense attention, or, with ids [Nq, Hkv, k] int32, of attention over these blocks.

    Arguments as in sink_mass. Learnable sinks take part as one more place that probability goes to.
    It is lse - softmax_scale * q . (mean key), good to about the float rounding of lse; with a soft
    cap, whose logits are no such product, NaN.
    """
    options = dict(softmax_scale=softmax_scale, window=window, softcap=softcap,
                   block_size=block_size, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
                   layout=layout)
    mean_key, lse = _attend(q, k, ids, {**options, "sinks": sinks, "backend": backend})
    found = _msalab.entropy(_attention_problem(q, k, options), _host(q, "float32"),
                            _host(mean_key, "float32"), _host(lse), _host(sinks))
    return _values(q, found, -1)


def _attention_problem(q, k, options):
    options = dict(options)
    packed = (options.pop(name) for name in ("layout", "cu_seqlens_q", "cu_seqlens_k"))
    return operations._problem(*packed, q, k, **options)


@_measures("group_overlap")
def group_overlap(ids: Any, *, all_rows: bool = False, block_size: int = 128, cu_seqlens_q: Any = None,
                  cu_seqlens_k: Any = None, layout: Any = None) -> Any:
    """How far the groups of a layer choose the same blocks, [Hkv, Hkv], of ids [Nq, Hkv, k]
    int32. Symmetric; the diagonal is 1.
    """
    p = _ids_problem(ids, block_size, cu_seqlens_q, cu_seqlens_k, layout)
    groups = ids.shape[1]
    found = _msalab.group_overlap(p, _host(ids), bool(all_rows))
    return _values(ids, found, groups, groups)


@_measures("layer_overlap")
def layer_overlap(selections: Any, *, block_size: int = 128, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
                  layout: Any = None) -> Any:
    """How far layers choose the same blocks, [L, L], of a list of L selections [Nq, Hkv, any k]
    int32 of the same queries. Every query and group counts, also a trivial one, and two empty rows
    overlap by 1. Symmetric; the diagonal is 1.
    """
    selections = list(selections)
    if not selections:
        raise InputError("selections is empty, must hold the ids of at least one layer")
    first = selections[0]
    p = _ids_problem(first, block_size, cu_seqlens_q, cu_seqlens_k, layout)
    on_host = [_host(ids) for ids in selections]
    return _values(first, [_msalab.mean_overlap(p, a, b) for a in on_host for b in on_host],
                   len(selections), len(selections))


@_measures("queries_per_block")
def popularity(ids: Any, *, block_size: int = 128, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
               layout: Any = None) -> Any:
    """How many queries of each group chose each block, [Hkv, blocks of all sequences] int64, of
    ids [Nq, Hkv, k] int32. lorenz_curve and gini say how evenly they are spread.
    """
    p = _ids_problem(ids, block_size, cu_seqlens_q, cu_seqlens_k, layout)
    found = _msalab.popularity(p, _host(ids))
    return _values(ids, found, ids.shape[1], -1, dtype=np.int64)


def _counts(counts):
    _shape("counts", counts, "Hkv", "blocks")
    rows = [integers("counts", row) for row in counts]
    for group, row in enumerate(rows):
        if min(row, default=0) < 0:
            raise InputError(f"counts[{group}] holds {min(row)}, must not be negative")
    return rows


def lorenz_curve(counts: Any) -> Any:
    """The share of all queries that the least popular blocks hold, [Hkv, blocks + 1], in steps of
    one block: from 0 to 1, and 0 everywhere in a group that chose nothing. counts: what popularity
    returns."""
    return _values(counts, [_msalab.lorenz_curve(row) for row in _counts(counts)],
                   counts.shape[0], counts.shape[1] + 1)


@_measures("gini")
def gini(counts: Any) -> Any:
    """How unevenly the queries are spread over blocks, [Hkv]. counts: what popularity returns. The
    area is that of trapezoids one block wide."""
    return _values(counts, [_msalab.gini(row) for row in _counts(counts)], -1)
