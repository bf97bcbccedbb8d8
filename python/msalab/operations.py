# SPDX-License-Identifier: MIT
"""The operations of MSA. Equations are those of the paper, the contracts those of core/backend.h:
keys behind a query's position and blocks outside its ids have no influence, not even as NaN; the
same arguments give the same bits, whatever the number of threads."""

import operator
import threading

import numpy as np

from ._compiled import load_compiled

_msalab = load_compiled()

Layout = _msalab.Layout
InputError, UnsupportedError = _msalab.InputError, _msalab.UnsupportedError
SystemError, OutOfMemoryError = _msalab.SystemError, _msalab.OutOfMemoryError

_local = threading.local()  # a backend is not safe for two threads


def backends() -> dict[str, str]:
    """Every backend by name, with the reason why it cannot start here, or ""."""
    return _msalab.backends()


def _backend(name: str, on_gpu: bool):
    if name == "auto":
        name = "cuda" if on_gpu else "cpu"
    if on_gpu != (name == "cuda"):
        raise InputError(f"backend is {name!r}, but q and the other arrays lie on "
                         f"{'a GPU' if on_gpu else 'the CPU'}")
    made = _local.__dict__.setdefault("backends", {})
    if name not in made:
        made[name] = _msalab.make_backend(name, 0, 0)
    return made[name]


class _Kind:
    """How to make results of the kind of an input: numpy arrays, or tensors beside it."""

    def __init__(self, like):
        self.is_torch = type(like).__module__.split(".")[0] == "torch"
        self.like = like
        if self.is_torch:
            import torch
            self.torch = torch
        self.on_gpu = self.is_torch and like.is_cuda

    def empty(self, shape, dtype=None):
        """Of the named dtype, or that of the input."""
        if self.is_torch:
            named = self.like.dtype if dtype is None else getattr(self.torch, dtype)
            return self.torch.empty(shape, dtype=named, device=self.like.device)
        return np.empty(shape, self.like.dtype if dtype is None else dtype)

    @staticmethod
    def given(array):
        """The array as the compiled part takes it: a tensor without its history."""
        return array.detach() if hasattr(array, "detach") else array


def _shape(name: str, array, *letters: str):
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise InputError(f"{name} is {type(array).__name__}, must be an array or a tensor")
    if len(array.shape) != len(letters):
        raise InputError(f"{name} has shape {list(array.shape)}, must be [{', '.join(letters)}]")
    return tuple(array.shape)


def _integers(name: str, values):
    values = values.tolist() if hasattr(values, "tolist") else values
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        raise InputError(f"{name} holds {values!r}, must be integers") from None


def layout(cu_seqlens_q, cu_seqlens_k=None, query_positions=None) -> Layout:
    """Where packed sequences lie, made and checked once for many calls: pass it as `layout=`.

    cu_seqlens_q, cu_seqlens_k: [S+1] integers from 0, not decreasing; keys as queries where absent.
    query_positions: [Nq], not decreasing within a sequence, below the sequence's keys; absent: the
    last query sits on the last key. Raises InputError naming the entry and the rule it breaks.
    """
    queries = _integers("cu_seqlens_q", cu_seqlens_q)
    keys = queries if cu_seqlens_k is None else _integers("cu_seqlens_k", cu_seqlens_k)
    return Layout(queries, keys,
                  [] if query_positions is None else _integers("query_positions", query_positions))


def _layout(given, cu_seqlens_q, cu_seqlens_k, queries: int, keys: int) -> Layout:
    if given is not None:
        if cu_seqlens_q is not None or cu_seqlens_k is not None:
            raise InputError("layout excludes cu_seqlens_q and cu_seqlens_k")
        return given
    if cu_seqlens_q is None and cu_seqlens_k is None:
        return Layout([0, queries], [0, keys], [])
    return layout(cu_seqlens_k if cu_seqlens_q is None else cu_seqlens_q,
                  cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k)


def _problem(lay: Layout, q=None, k=None, index_q=None, *, block_size=128, softmax_scale=None,
             index_scale=None, window=None, softcap=None):
    query_heads = kv_heads = head_dim = index_dim = 0
    if q is not None:
        _, query_heads, head_dim = _shape("q", q, "Nq", "Hq", "dh")
        _, kv_heads, _ = _shape("k", k, "Nk", "Hkv", "dh")
    if index_q is not None:
        _, groups, index_dim = _shape("index_q", index_q, "Nq", "Hkv", "didx")
        if q is None:  # the Index Branch alone: sizes of attention that it does not read
            query_heads, kv_heads, head_dim = groups, groups, 16
    return _msalab.Problem(lay, query_heads, kv_heads, head_dim, index_dim, block_size,
                           softmax_scale, index_scale, window, softcap)


def _detached(*arrays):
    return [None if array is None else _Kind.given(array) for array in arrays]


def dense_attention(q, k, v, *, softmax_scale=None, return_softmax_lse=False, sinks=None,
                    window=None, softcap=None, cu_seqlens_q=None, cu_seqlens_k=None, layout=None,
                    backend="auto"):
    """Causal softmax attention with GQA (eq:softmax-attention).

    q [Nq, Hq, dh]; k, v [Nk, Hkv, dh]; sinks [Hq] float32, a learnable logit of each head that
    competes in its softmax. softmax_scale: 1/sqrt(dh) where absent. window: a query at position i
    attends to i - window + 1 .. i alone. softcap: a logit is softcap * tanh(logit / softcap).
    Returns out [Nq, Hq, dh] like q; with return_softmax_lse also lse [Nq, Hq] float32, the natural
    log of the sum of exp(logit). A query without a visible key has out 0 and lse -inf.
    """
    kind = _Kind(q)
    queries, heads, _ = _shape("q", q, "Nq", "Hq", "dh")
    lay = _layout(layout, cu_seqlens_q, cu_seqlens_k, queries, len(k))
    p = _problem(lay, q, k, softmax_scale=softmax_scale, window=window, softcap=softcap)
    out, lse = kind.empty(tuple(q.shape)), kind.empty((queries, heads), "float32")
    q, k, v, sinks = _detached(q, k, v, sinks)
    _backend(backend, kind.on_gpu).dense_attention(p, q, k, v, sinks, out, lse)
    return (out, lse) if return_softmax_lse else out


def dense_attention_grad(q, k, v, out, lse, d_out, *, softmax_scale=None, sinks=None,
                         cu_seqlens_q=None, cu_seqlens_k=None, layout=None, backend="auto"):
    """Its gradient: (d_q, d_k, d_v), and d_sinks behind them where there are sinks.

    out [Nq, Hq, dh] and lse [Nq, Hq] are what dense_attention returned; d_out [Nq, Hq, dh]. Saved
    values that cannot be of this input raise InputError.
    """
    kind = _Kind(q)
    lay = _layout(layout, cu_seqlens_q, cu_seqlens_k, len(q), len(k))
    p = _problem(lay, q, k, softmax_scale=softmax_scale)
    gradients = _empty_gradients(kind, q, k, v, sinks)
    given = _detached(q, k, v, sinks, out, lse, d_out)
    _backend(backend, kind.on_gpu).dense_attention_grad(p, *given, *gradients)
    return gradients if sinks is not None else gradients[:3]


def _empty_gradients(kind, q, k, v, sinks):
    return (kind.empty(tuple(q.shape)), kind.empty(tuple(k.shape)), kind.empty(tuple(v.shape)),
            None if sinks is None else kind.empty(tuple(sinks.shape), "float32"))


def msa_proxy_score(index_q, index_k, *, block_size=128, index_scale=None, cu_seqlens_q=None,
                    cu_seqlens_k=None, layout=None, backend="auto"):
    """Scores of the Index Branch by block (eq:msa-index-score), [Nq, Hkv, B] float32.

    index_q [Nq, Hkv, didx], one head per group; index_k [Nk, didx], one head for all groups. A
    score is the maximum over the block's visible tokens of index_scale * index_q . index_k; without
    a visible token -inf, with a NaN product NaN. index_scale: 1/sqrt(didx) where absent.
    """
    kind = _Kind(index_q)
    queries, groups, _ = _shape("index_q", index_q, "Nq", "Hkv", "didx")
    lay = _layout(layout, cu_seqlens_q, cu_seqlens_k, queries, len(index_k))
    p = _problem(lay, index_q=index_q, block_size=block_size, index_scale=index_scale)
    scores = kind.empty((queries, groups, p.blocks), "float32")
    _backend(backend, kind.on_gpu).index_scores(p, *_detached(index_q, index_k), scores)
    return scores


def msa_topk_select(scores, topk, *, force_begin_blocks=0, force_end_blocks=1, block_size=128,
                    cu_seqlens_q=None, cu_seqlens_k=None, layout=None, backend="auto"):
    """The blocks that each query and group keeps (eq:msa-topk), [Nq, Hkv, topk] int32.

    scores [Nq, Hkv, B] float32. Of the topk slots the newest force_end_blocks visible blocks (at
    least 1: the query's own) and the oldest force_begin_blocks take theirs first; the rest go to
    the visible blocks of highest score above -inf (NaN counts as -inf). Ties go to the lower id.
    Rows are ascending and padded with -1. Without cu_seqlens or layout: one sequence with as many
    keys as queries.
    """
    kind = _Kind(scores)
    queries, groups, _ = _shape("scores", scores, "Nq", "Hkv", "B")
    lay = _layout(layout, cu_seqlens_q, cu_seqlens_k, queries, queries)
    p = _msalab.Problem(lay, groups, groups, 16, 0, block_size, None, None, None, None)
    ids = kind.empty((queries, groups, _positive("topk", topk)), "int32")
    _backend(backend, kind.on_gpu).select_blocks(p, topk, force_end_blocks, force_begin_blocks,
                                                 *_detached(scores), ids)
    return ids


def _positive(name: str, value) -> int:
    if operator.index(value) < 1:
        raise InputError(f"{name} is {value}, must be at least 1")
    return operator.index(value)


def msa_index_select(index_q, index_k, topk, *, force_begin_blocks=0, force_end_blocks=1,
                     block_size=128, index_scale=None, cu_seqlens_q=None, cu_seqlens_k=None,
                     layout=None, backend="auto"):
    """msa_proxy_score and msa_topk_select in one: the same ids, without scores in memory."""
    kind = _Kind(index_q)
    queries, groups, _ = _shape("index_q", index_q, "Nq", "Hkv", "didx")
    lay = _layout(layout, cu_seqlens_q, cu_seqlens_k, queries, len(index_k))
    p = _problem(lay, index_q=index_q, block_size=block_size, index_scale=index_scale)
    ids = kind.empty((queries, groups, _positive("topk", topk)), "int32")
    _backend(backend, kind.on_gpu).index_select(p, topk, force_end_blocks, force_begin_blocks,
                                                *_detached(index_q, index_k), ids)
    return ids


def msa_sparse_attention(q, k, v, topk_idxs, *, softmax_scale=None, return_softmax_lse=False,
                         sinks=None, window=None, softcap=None, block_size=128, order="automatic",
                         cu_seqlens_q=None, cu_seqlens_k=None, layout=None, backend="auto"):
    """Softmax attention over the visible tokens of the selected blocks (eq:msa-sparse-attn).

    q, k, v, sinks, window, softcap and what is returned: as in dense_attention. topk_idxs
    [Nq, Hkv, k] int32: blocks of the query's own sequence, ascending without repeats, visible to
    the query, padded with -1 at the end; a row of -1 alone gives out 0 and lse -inf. Ids that
    break this raise InputError naming query, group and rule. order: automatic, union, kv_outer or
    q_outer, the loop order.
    """
    kind = _Kind(q)
    queries, heads, _ = _shape("q", q, "Nq", "Hq", "dh")
    lay = _layout(layout, cu_seqlens_q, cu_seqlens_k, queries, len(k))
    p = _problem(lay, q, k, block_size=block_size, softmax_scale=softmax_scale, window=window,
                 softcap=softcap)
    out, lse = kind.empty(tuple(q.shape)), kind.empty((queries, heads), "float32")
    q, k, v, sinks, ids = _detached(q, k, v, sinks, topk_idxs)
    _backend(backend, kind.on_gpu).sparse_attention(p, q, k, v, sinks, ids, order, out, lse)
    return (out, lse) if return_softmax_lse else out


def msa_sparse_attention_grad(q, k, v, topk_idxs, out, lse, d_out, *, softmax_scale=None,
                              sinks=None, block_size=128, order="automatic", cu_seqlens_q=None,
                              cu_seqlens_k=None, layout=None, backend="auto"):
    """Its gradient, as dense_attention_grad; none through topk_idxs."""
    kind = _Kind(q)
    lay = _layout(layout, cu_seqlens_q, cu_seqlens_k, len(q), len(k))
    p = _problem(lay, q, k, block_size=block_size, softmax_scale=softmax_scale)
    gradients = _empty_gradients(kind, q, k, v, sinks)
    q, k, v, sinks, ids, out, lse, d_out = _detached(q, k, v, sinks, topk_idxs, out, lse, d_out)
    _backend(backend, kind.on_gpu).sparse_attention_grad(p, q, k, v, sinks, ids, order, out, lse,
                                                         d_out, *gradients)
    return gradients if sinks is not None else gradients[:3]


def msa_sparse_decode_attention(q, k, v, topk_idxs, **options):
    """msa_sparse_attention of one decode step: q [S, Hq, dh] holds the newest token of each of S
    sequences, whose keys cu_seqlens_k [S+1] delimits; without it S must be 1."""
    queries, _, _ = _shape("q", q, "S", "Hq", "dh")
    keys = options.pop("cu_seqlens_k", None)
    if options.get("layout") is None:
        if keys is None and queries != 1:
            raise InputError(f"q holds {queries} queries: cu_seqlens_k must delimit the keys of as "
                             "many sequences")
        options["layout"] = layout(range(queries + 1), [0, len(k)] if keys is None else keys)
    return msa_sparse_attention(q, k, v, topk_idxs, **options)


def msa_block_mass(q, k, *, softmax_scale=None, sinks=None, window=None, softcap=None,
                   block_size=128, return_max_logit=False, cu_seqlens_q=None, cu_seqlens_k=None,
                   layout=None, backend="auto"):
    """Dense attention's probability by block, [Nq, Hkv, B] float32: the sum over the block's
    visible tokens, mean over the heads of the group (P_b). With return_max_logit also the maximum
    of the logit over the same tokens and heads; -inf where there is none."""
    kind = _Kind(q)
    queries, _, _ = _shape("q", q, "Nq", "Hq", "dh")
    lay = _layout(layout, cu_seqlens_q, cu_seqlens_k, queries, len(k))
    p = _problem(lay, q, k, block_size=block_size, softmax_scale=softmax_scale, window=window,
                 softcap=softcap)
    shape = (queries, k.shape[1], p.blocks)
    mass = kind.empty(shape, "float32")
    max_logit = kind.empty(shape, "float32") if return_max_logit else None
    q, k, sinks = _detached(q, k, sinks)
    _backend(backend, kind.on_gpu).block_mass(p, q, k, sinks, mass, max_logit)
    return (mass, max_logit) if return_max_logit else mass


def msa_index_kl(q, k, index_q, index_k, topk_idxs=None, *, softmax_scale=None, index_scale=None,
                 teacher="mean", sinks=None, block_size=128, return_gradient=True,
                 cu_seqlens_q=None, cu_seqlens_k=None, layout=None, backend="auto"):
    """The KL divergence of the index distribution from the teacher (eq:msa-kl), per row.

    The teacher is the mean (or max) over a group's heads of softmax attention on the support: the
    visible tokens of the blocks topk_idxs [Nq, Hkv, k], or all visible tokens where absent (the
    warm-up). Returns kl [Nq, Hkv] float64; with return_gradient also d_index_q [Nq, Hkv, didx] and
    d_index_k [Nk, didx] float32, of the mean of kl over all rows. The teacher gets no gradient.
    """
    kind = _Kind(index_q)
    queries, groups, _ = _shape("index_q", index_q, "Nq", "Hkv", "didx")
    lay = _layout(layout, cu_seqlens_q, cu_seqlens_k, queries, len(k))
    p = _problem(lay, q, k, index_q, block_size=block_size, softmax_scale=softmax_scale,
                 index_scale=index_scale)
    kl = kind.empty((queries, groups), "float64")
    d_index_q = kind.empty(tuple(index_q.shape), "float32") if return_gradient else None
    d_index_k = kind.empty(tuple(index_k.shape), "float32") if return_gradient else None
    q, k, index_q, index_k, ids, sinks = _detached(q, k, index_q, index_k, topk_idxs, sinks)
    _backend(backend, kind.on_gpu).index_kl(p, q, k, index_q, index_k, ids, teacher, sinks, kl,
                                            d_index_q, d_index_k)
    return (kl, d_index_q, d_index_k) if return_gradient else kl
