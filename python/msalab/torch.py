# SPDX-License-Identifier: MIT
"""The operations of `msalab` as PyTorch operators, with gradients: under torch.compile, and in
autograd. Shapes, rules and errors are those of the functions of the same names in `msalab`.

    import msalab.torch as m
    ids = m.msa_index_select(index_q, index_k, 16, block_size=64, cu_seqlens_q=cu, cu_seqlens_k=cu)
    out = m.msa_sparse_attention(q, k, v, ids, block_size=64, cu_seqlens_q=cu, cu_seqlens_k=cu)
    kl = m.msa_index_kl(q, k, index_q, index_k, ids, block_size=64)   # a scalar: the mean over rows

On the CPU operands are float32. There is no gradient through ids, lse, nor into the teacher of
msa_index_kl, which is what the paper trains with.
"""

from typing import List, Optional, Tuple

import torch
from torch import Tensor

from . import operations
from .operations import InputError, layout  # noqa: F401

# Operators of torch.library take flat arguments: sequences as lists of integers.
Lengths = Optional[List[int]]


def _lengths(name: str, values) -> Lengths:
    return None if values is None else operations._integers(name, values)


def _empty_like_attention(q: Tensor) -> Tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[:2], dtype=torch.float32)


@torch.library.custom_op("msalab::dense_attention", mutates_args=())
def _dense(q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], scale: Optional[float],
           window: Optional[int], softcap: Optional[float], cu_q: Lengths,
           cu_k: Lengths) -> Tuple[Tensor, Tensor]:
    return operations.dense_attention(q, k, v, softmax_scale=scale, return_softmax_lse=True,
                                      sinks=sinks, window=window, softcap=softcap,
                                      cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)


@_dense.register_fake
def _(q, k, v, sinks, scale, window, softcap, cu_q, cu_k):
    return _empty_like_attention(q)


@torch.library.custom_op("msalab::dense_attention_grad", mutates_args=())
def _dense_grad(q: Tensor, k: Tensor, v: Tensor, sinks: Optional[Tensor], out: Tensor,
                lse: Tensor, d_out: Tensor, scale: Optional[float], cu_q: Lengths,
                cu_k: Lengths) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    gradients = operations.dense_attention_grad(
        q, k, v, out, lse, d_out.contiguous(), softmax_scale=scale, sinks=sinks,
        cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    return _four(gradients, q)


def _four(gradients, q: Tensor):
    """An operator has as many results with sinks as without."""
    return gradients if len(gradients) == 4 else (*gradients, q.new_empty(0, dtype=torch.float32))


def _fake_gradients(q, k, v, sinks):
    heads = 0 if sinks is None else sinks.shape[0]
    return (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v),
            q.new_empty(heads, dtype=torch.float32))


@_dense_grad.register_fake
def _(q, k, v, sinks, out, lse, d_out, scale, cu_q, cu_k):
    return _fake_gradients(q, k, v, sinks)


def _save_dense(ctx, inputs, output):
    q, k, v, sinks, ctx.scale, window, softcap, ctx.cu_q, ctx.cu_k = inputs
    if window is not None or softcap is not None:
        ctx.refusal = "dense_attention with a window or a soft cap has no gradient"
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, sinks, *output)


def _backward_dense(ctx, d_out, _):
    _refuse(ctx)
    q, k, v, sinks, out, lse = ctx.saved_tensors
    d_q, d_k, d_v, d_sinks = _dense_grad(q, k, v, sinks, out, lse, d_out, ctx.scale, ctx.cu_q,
                                         ctx.cu_k)
    return (d_q, d_k, d_v, None if sinks is None else d_sinks) + (None,) * 5


def _refuse(ctx):
    if getattr(ctx, "refusal", None):
        raise InputError(ctx.refusal)


_dense.register_autograd(_backward_dense, setup_context=_save_dense)


@torch.library.custom_op("msalab::sparse_attention", mutates_args=())
def _sparse(q: Tensor, k: Tensor, v: Tensor, ids: Tensor, sinks: Optional[Tensor],
            scale: Optional[float], window: Optional[int], softcap: Optional[float],
            block_size: int, order: str, cu_q: Lengths, cu_k: Lengths) -> Tuple[Tensor, Tensor]:
    return operations.msa_sparse_attention(
        q, k, v, ids, softmax_scale=scale, return_softmax_lse=True, sinks=sinks, window=window,
        softcap=softcap, block_size=block_size, order=order, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)


@_sparse.register_fake
def _(q, k, v, ids, sinks, scale, window, softcap, block_size, order, cu_q, cu_k):
    return _empty_like_attention(q)


@torch.library.custom_op("msalab::sparse_attention_grad", mutates_args=())
def _sparse_grad(q: Tensor, k: Tensor, v: Tensor, ids: Tensor, sinks: Optional[Tensor],
                 out: Tensor, lse: Tensor, d_out: Tensor, scale: Optional[float], block_size: int,
                 order: str, cu_q: Lengths,
                 cu_k: Lengths) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    gradients = operations.msa_sparse_attention_grad(
        q, k, v, ids, out, lse, d_out.contiguous(), softmax_scale=scale, sinks=sinks,
        block_size=block_size, order=order, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    return _four(gradients, q)


@_sparse_grad.register_fake
def _(q, k, v, ids, sinks, out, lse, d_out, scale, block_size, order, cu_q, cu_k):
    return _fake_gradients(q, k, v, sinks)


def _save_sparse(ctx, inputs, output):
    q, k, v, ids, sinks, ctx.scale, window, softcap, *ctx.rest = inputs
    if window is not None or softcap is not None:
        ctx.refusal = "msa_sparse_attention with a window or a soft cap has no gradient"
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(q, k, v, ids, sinks, *output)


def _backward_sparse(ctx, d_out, _):
    _refuse(ctx)
    q, k, v, ids, sinks, out, lse = ctx.saved_tensors
    d_q, d_k, d_v, d_sinks = _sparse_grad(q, k, v, ids, sinks, out, lse, d_out, ctx.scale,
                                          *ctx.rest)
    return (d_q, d_k, d_v, None, None if sinks is None else d_sinks) + (None,) * 7


_sparse.register_autograd(_backward_sparse, setup_context=_save_sparse)


@torch.library.custom_op("msalab::index_kl", mutates_args=())
def _kl(index_q: Tensor, index_k: Tensor, q: Tensor, k: Tensor, ids: Optional[Tensor],
        sinks: Optional[Tensor], scale: Optional[float], index_scale: Optional[float],
        teacher: str, block_size: int, cu_q: Lengths,
        cu_k: Lengths) -> Tuple[Tensor, Tensor, Tensor]:
    kl, d_index_q, d_index_k = operations.msa_index_kl(
        q, k, index_q, index_k, ids, softmax_scale=scale, index_scale=index_scale,
        teacher=teacher, sinks=sinks, block_size=block_size, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    return kl.mean().to(torch.float32), d_index_q, d_index_k


@_kl.register_fake
def _(index_q, index_k, q, k, ids, sinks, scale, index_scale, teacher, block_size, cu_q, cu_k):
    return (index_q.new_empty((), dtype=torch.float32),
            torch.empty_like(index_q, dtype=torch.float32),
            torch.empty_like(index_k, dtype=torch.float32))


def _save_kl(ctx, inputs, output):
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*output[1:])


def _backward_kl(ctx, d_kl, *_):
    d_index_q, d_index_k = ctx.saved_tensors
    return (d_kl * d_index_q, d_kl * d_index_k) + (None,) * 10


_kl.register_autograd(_backward_kl, setup_context=_save_kl)


@torch.library.custom_op("msalab::index_select", mutates_args=())
def _select(index_q: Tensor, index_k: Tensor, topk: int, force_begin_blocks: int,
            force_end_blocks: int, block_size: int, index_scale: Optional[float], cu_q: Lengths,
            cu_k: Lengths) -> Tensor:
    return operations.msa_index_select(
        index_q, index_k, topk, force_begin_blocks=force_begin_blocks,
        force_end_blocks=force_end_blocks, block_size=block_size, index_scale=index_scale,
        cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)


@_select.register_fake
def _(index_q, index_k, topk, force_begin_blocks, force_end_blocks, block_size, index_scale, cu_q,
      cu_k):
    return index_q.new_empty((*index_q.shape[:2], topk), dtype=torch.int32)


def dense_attention(q, k, v, *, softmax_scale=None, return_softmax_lse=False, sinks=None,
                    window=None, softcap=None, cu_seqlens_q=None, cu_seqlens_k=None):
    """msalab.dense_attention with gradients of q, k, v and sinks; with a window or a soft cap,
    without one."""
    out, lse = _dense(q, k, v, sinks, softmax_scale, window, softcap,
                      _lengths("cu_seqlens_q", cu_seqlens_q),
                      _lengths("cu_seqlens_k", cu_seqlens_k))
    return (out, lse) if return_softmax_lse else out


def msa_sparse_attention(q, k, v, topk_idxs, *, softmax_scale=None, return_softmax_lse=False,
                         sinks=None, window=None, softcap=None, block_size=128, order="automatic",
                         cu_seqlens_q=None, cu_seqlens_k=None):
    """msalab.msa_sparse_attention with gradients of q, k, v and sinks; with a window or a soft
    cap, without one."""
    out, lse = _sparse(q, k, v, topk_idxs, sinks, softmax_scale, window, softcap, block_size, order,
                       _lengths("cu_seqlens_q", cu_seqlens_q),
                       _lengths("cu_seqlens_k", cu_seqlens_k))
    return (out, lse) if return_softmax_lse else out


def msa_index_select(index_q, index_k, topk, *, force_begin_blocks=0, force_end_blocks=1,
                     block_size=128, index_scale=None, cu_seqlens_q=None, cu_seqlens_k=None):
    """msalab.msa_index_select; ids have no gradient."""
    return _select(index_q.detach(), index_k.detach(), topk, force_begin_blocks, force_end_blocks,
                   block_size, index_scale, _lengths("cu_seqlens_q", cu_seqlens_q),
                   _lengths("cu_seqlens_k", cu_seqlens_k))


def msa_index_kl(q, k, index_q, index_k, topk_idxs=None, *, softmax_scale=None, index_scale=None,
                 teacher="mean", sinks=None, block_size=128, cu_seqlens_q=None,
                 cu_seqlens_k=None):
    """The mean over rows of msalab.msa_index_kl, a float32 scalar with gradients of index_q and
    index_k. q, k and sinks, the teacher's, get none."""
    sinks = None if sinks is None else sinks.detach()
    return _kl(index_q, index_k, q.detach(), k.detach(), topk_idxs, sinks, softmax_scale,
               index_scale, teacher, block_size, _lengths("cu_seqlens_q", cu_seqlens_q),
               _lengths("cu_seqlens_k", cu_seqlens_k))[0]
