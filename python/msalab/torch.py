# SPDX-License-Identifier: MIT
"""The operations of `msalab` as PyTorch operators, with gradients, on the CPU and on CUDA: under
torch.compile, in autograd, and in CUDA graphs. Shapes, rules and errors are those of the functions of
the same names in `msalab`.

    import msalab.torch as m
    ids = m.index_select(index_q, index_k, 16, block_size=64, cu_seqlens_q=cu, cu_seqlens_k=cu)
    out = m.sparse_attention(q, k, v, ids, block_size=64, cu_seqlens_q=cu, cu_seqlens_k=cu)
    kl = m.index_kl(q, k, index_q, index_k, ids, block_size=64)   # a scalar: the mean over rows

On the CPU operands are float32, on CUDA float32, bfloat16 or float16; those of index_scores and
index_select may be int8, with scales (msalab.store_int8), and those of sparse_attention float8_e4m3fn
(msalab.store_e4m3), without a gradient. With element="e4m3" sparse_attention rounds its operands itself
and has one. There is no gradient through ids, lse, nor into the teacher of index_kl, which is what the
paper trains with.

On CUDA a call takes its turn in PyTorch's current stream and waits for nothing; its workspace is
PyTorch's memory. Values are not checked there: ids must keep the rules of sparse_attention. Give
cu_seqlens as lists: a tensor on the GPU has to be waited for. In a CUDA graph a call keeps the
cu_seqlens that it was captured with. Dense attention is called once on the stream before it is
captured there.

Under torch.compile cu_seqlens in a list are constants of the graph; those in a tensor on the CPU may
become others, but for index_scores and block_mass.
"""

from __future__ import annotations

import functools
import inspect
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Optional, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from . import operations, rounding
from .operations import InputError, check_pages, integers, layout  # noqa: F401

__all__ = ["InputError", "append", "block_mass", "check_pages", "dense_attention", "index_kl", "index_scores",
           "index_select", "layout", "msa_block_mass", "msa_index_kl", "msa_index_select", "msa_proxy_score",
           "msa_sparse_attention", "msa_sparse_decode_attention", "msa_topk_select", "select_blocks",
           "sparse_attention", "sparse_decode_attention"]

_library = torch.library.Library("msalab", "FRAGMENT")
# Compilers keep operands in the row-major order that the operations demand.
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
_PLAIN = frozenset((Tensor, Parameter, type(None)))

# Private names: python/README.md says what each is worth.
_dispatch_modes = torch._C._len_torch_dispatch_stack
_transform = torch._C._functorch.peek_interpreter_stack
_is_profiled = torch.autograd._profiler_enabled


def _is_watched() -> bool:
    """Does a transform, a mode or a profiler look at operators?"""
    return _dispatch_modes() > 0 or _transform() is not None or _is_profiled()


class _Operator:
    """The operator msalab::name, and the function that calls it: the first `tensors` of its
    arguments are tensors or None, those called cu_q and cu_k lists, which a graph keeps as
    constants. Where the shape of the output is not `by_lengths`, its overload `packed` takes them as
    tensors, whose values may become others in the same graph. Where nobody looks at operators, and no
    tensor is of a kind of its own, the call goes past PyTorch's dispatcher, which takes longer than
    all else that the host does for it.

    compute(*arguments) gives the output, fake(*arguments) an empty one like it; save(ctx, inputs,
    output) and backward(ctx, *gradients) are autograd's; without a backward the output is a constant.
    direct is compute where nothing but the caller takes its output.
    """

    def __init__(self, name: str, schema: str, tensors: int, compute: Callable, fake: Callable,
                 save: Callable, backward: Optional[Callable] = None,
                 direct: Optional[Callable] = None, by_lengths: bool = False):
        self.name, self.tensors = name, tensors
        self.compute, self.direct = compute, direct or compute
        self.function = backward and self._function(save, backward)
        self.names = [one.split()[-1] for one in schema[1:schema.index(")")].split(", ")]
        self.lengths = self.names.index("cu_q")
        nothing = (None,) * len(self.names)

        def register(overload: str, schema: str):
            full = name + overload
            _library.define(full + schema, tags=_TAGS)
            for device in ("CPU", "CUDA"):
                _library.impl(full, self._kernel, device)
            torch.library.register_fake(f"msalab::{full}", fake, lib=_library)
            torch.library.register_autograd(f"msalab::{full}", backward or (lambda ctx, *_: nothing),
                                            setup_context=save, lib=_library)

        register("", schema)
        self.operator = getattr(torch.ops.msalab, name).default
        self.packed = None
        if not by_lengths:
            register(".packed", schema.replace("SymInt[]?", "Tensor?"))
            self.packed = getattr(torch.ops.msalab, name).packed

    def _kernel(self, *arguments):
        """Of torch.ops.msalab: PyTorch leaves the tangents of an operator's operands out."""
        if self.function and any(map(_has_tangent, arguments[:self.tensors])):
            self._refuse_forward_mode()
        return self.compute(*self._with_lists(arguments))

    def _operate(self, *arguments):
        """By torch.ops.msalab."""
        cu = arguments[self.lengths:self.lengths + 2]
        if self.packed and any(isinstance(one, Tensor) for one in cu):
            cu = (None if one is None else torch.as_tensor(one) for one in cu)
            return self.packed(*arguments[:self.lengths], *cu, *arguments[self.lengths + 2:])
        return self.operator(*self._with_lists(arguments))

    def _with_lists(self, arguments):
        cu_q, cu_k = arguments[self.lengths:self.lengths + 2]
        return (*arguments[:self.lengths], None if cu_q is None else integers("cu_seqlens_q", cu_q),
                None if cu_k is None else integers("cu_seqlens_k", cu_k), *arguments[self.lengths + 2:])

    def _refuse_forward_mode(self, *_):
        raise InputError(f"{self.name} has no derivative in forward mode: jvp, jacfwd, hessian and dual "
                         "tensors of forward_ad are not supported")

    def _function(self, save: Callable, backward: Callable):
        class Function(torch.autograd.Function):
            generate_vmap_rule = True
            setup_context = staticmethod(save)
            jvp = staticmethod(self._refuse_forward_mode)

            @staticmethod
            def forward(*arguments):
                return self._run(self.compute, nullcontext, arguments)

        Function.backward = staticmethod(backward)
        Function.__name__ = self.name
        return Function

    def __call__(self, *arguments):
        if torch.compiler.is_compiling():
            return self._operate(*arguments)
        if self.function is None:
            return self._run(self.direct, torch.no_grad, arguments)
        by_autograd = torch.is_grad_enabled()
        for tensor in arguments[:self.tensors]:
            if by_autograd and getattr(tensor, "requires_grad", False) or _has_tangent(tensor):
                return self.function.apply(*self._with_lists(arguments))
        return self._run(self.direct, nullcontext, arguments)

    def _run(self, compute: Callable, mode: Callable, arguments):
        tensors = arguments[:self.tensors]
        if not _is_watched() and _PLAIN.issuperset(map(type, tensors)):
            return compute(*arguments)
        for tensor, name in zip(tensors, self.names):
            if getattr(tensor, "is_nested", False):
                raise InputError(f"{name} is a nested tensor, {operations.MUST_BE_DENSE}")
        with mode():
            return self._operate(*arguments)


def _has_tangent(tensor) -> bool:
    return isinstance(tensor, Tensor) and forward_ad.unpack_dual(tensor).tangent is not None


def result_dtype(q: Tensor) -> torch.dtype:
    """Of attention's output: that of q, of e4m3 as wide as the backend gives it."""
    if q.dtype is not torch.float8_e4m3fn:
        return q.dtype
    return torch.bfloat16 if q.is_cuda else torch.float32


def _fake_attention(q, *_):
    return torch.empty_like(q, dtype=result_dtype(q)), q.new_empty(q.shape[:2], dtype=torch.float32)


def _four(gradients, q: Tensor):
    """An operator has as many results with sinks as without."""
    return gradients if len(gradients) == 4 else (*gradients, q.new_empty(0, dtype=torch.float32))


def _fake_gradients(q, k, v, sinks):
    heads = 0 if sinks is None else sinks.shape[0]
    return (torch.empty_like(q), torch.empty_like(k), torch.empty_like(v),
            q.new_empty(heads, dtype=torch.float32))


def _save_nothing(ctx, inputs, output):
    pass


def _no_second_gradient(ctx, *_):
    raise InputError("a gradient of attention has no gradient of its own")


def _save_attention(ctx, name, tensors, window, softcap, output):
    ctx.refusal = None
    if window is not None or softcap is not None:
        ctx.refusal = f"{name} with a window or a soft cap has no gradient"
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output)


def _refuse(ctx):
    if ctx.refusal is not None:
        raise InputError(ctx.refusal)


def _save_dense(ctx, inputs, output):
    q, k, v, sinks, ctx.scale, window, softcap, ctx.cu_q, ctx.cu_k = inputs
    _save_attention(ctx, "dense_attention", (q, k, v, sinks), window, softcap, output)


def _backward_dense(ctx, d_out, _):
    _refuse(ctx)
    q, k, v, sinks, out, lse = ctx.saved_tensors
    d_q, d_k, d_v, d_sinks = _dense_grad(q, k, v, sinks, out, lse, d_out, ctx.scale, ctx.cu_q,
                                         ctx.cu_k)
    return (d_q, d_k, d_v, None if sinks is None else d_sinks) + (None,) * 5


_dense = _Operator(
    "dense_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor? sinks, float? scale, SymInt? window, float? softcap, "
    "SymInt[]? cu_q, SymInt[]? cu_k) -> (Tensor, Tensor)",
    4, operations._dense, _fake_attention, _save_dense, _backward_dense)


def _compute_dense_grad(q, k, v, sinks, out, lse, d_out, scale, cu_q, cu_k):
    ordered = not q.is_cuda or torch.are_deterministic_algorithms_enabled()
    return _four(operations.dense_attention_grad(
        q, k, v, out, lse, d_out.contiguous(), softmax_scale=scale, sinks=sinks,
        cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, backend="auto" if ordered else "cuda-unordered"), q)


_dense_grad = _Operator(
    "dense_attention_grad",
    "(Tensor q, Tensor k, Tensor v, Tensor? sinks, Tensor out, Tensor lse, Tensor d_out, "
    "float? scale, SymInt[]? cu_q, SymInt[]? cu_k) -> (Tensor, Tensor, Tensor, Tensor)",
    7, _compute_dense_grad, lambda q, k, v, sinks, *_: _fake_gradients(q, k, v, sinks),
    _save_nothing, _no_second_gradient)


def _save_sparse(ctx, inputs, output):
    q, k, v, ids, sinks, _, _, _, ctx.scale, window, softcap, ctx.block_size, _, *ctx.lengths = inputs
    _save_attention(ctx, "sparse_attention", (q, k, v, ids, sinks), window, softcap, output)
    if q.dtype is torch.float8_e4m3fn:
        ctx.refusal = ("sparse_attention of e4m3 operands has no gradient; that of wider ones has, with "
                       f"element={rounding.SCALED!r}")


def _backward_sparse(ctx, d_out, _):
    _refuse(ctx)
    q, k, v, ids, sinks, out, lse = ctx.saved_tensors
    d_q, d_k, d_v, d_sinks = _sparse_grad(q, k, v, ids, sinks, out, lse, d_out, ctx.scale,
                                          ctx.block_size, "automatic", *ctx.lengths)
    return (d_q, d_k, d_v, None, None if sinks is None else d_sinks) + (None,) * 10


_sparse = _Operator(
    "sparse_attention",
    "(Tensor q, Tensor k, Tensor v, Tensor ids, Tensor? sinks, Tensor? q_scales, Tensor? k_scales, "
    "Tensor? v_scales, float? scale, SymInt? window, float? softcap, SymInt block_size, str order, "
    "SymInt[]? cu_q, SymInt[]? cu_k) -> (Tensor, Tensor)",
    8, operations._sparse, _fake_attention, _save_sparse, _backward_sparse)


def _compute_rounded(q, k, v, ids, sinks, q_scales, k_scales, v_scales, of_q, of_k, of_v, *others):
    return operations._sparse(q, k, v, ids, sinks, q_scales, k_scales, v_scales, *others)


def _save_rounded(ctx, inputs, output):
    ctx.scale, window, softcap, ctx.block_size, _, *ctx.lengths = inputs[11:]
    ctx.dtypes = [one.dtype for one in inputs[8:11]]
    _save_attention(ctx, "sparse_attention", inputs[:8], window, softcap, output)


def _backward_rounded(ctx, d_out, _):
    """At the numbers that e4m3 and scales stand for, in the type of the kernel's output."""
    _refuse(ctx)
    q, k, v, ids, sinks, *scales, out, lse = ctx.saved_tensors
    read = rounding.read(rounding.Stored(q, k, v, tuple(scales)), _key_ends(k, *ctx.lengths), ctx.block_size,
                         out.dtype)
    *found, d_sinks = _sparse_grad(*read, ids, sinks, out, lse, d_out, ctx.scale, ctx.block_size, "automatic",
                                   *ctx.lengths)
    found = (one.to(dtype) for one, dtype in zip(found, ctx.dtypes))
    return (None,) * 4 + (None if sinks is None else d_sinks,) + (None,) * 3 + (*found,) + (None,) * 7


def _key_ends(k, cu_q, cu_k):
    ends = cu_q if cu_k is None else cu_k
    return [0, len(k)] if ends is None else ends


# sparse_attention of e4m3 operands, and of_q, of_k and of_v, of which they were rounded and which get the gradient.
_rounded = _Operator(
    "sparse_attention_rounded",
    "(Tensor q, Tensor k, Tensor v, Tensor ids, Tensor? sinks, Tensor? q_scales, Tensor? k_scales, "
    "Tensor? v_scales, Tensor of_q, Tensor of_k, Tensor of_v, float? scale, SymInt? window, float? softcap, "
    "SymInt block_size, str order, SymInt[]? cu_q, SymInt[]? cu_k) -> (Tensor, Tensor)",
    11, _compute_rounded, _fake_attention, _save_rounded, _backward_rounded)


def _compute_sparse_grad(q, k, v, ids, sinks, out, lse, d_out, scale, block_size, order, cu_q,
                         cu_k):
    return _four(operations.sparse_attention_grad(
        q, k, v, ids, out, lse, d_out.contiguous(), softmax_scale=scale, sinks=sinks,
        block_size=block_size, order=order, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k), q)


_sparse_grad = _Operator(
    "sparse_attention_grad",
    "(Tensor q, Tensor k, Tensor v, Tensor ids, Tensor? sinks, Tensor out, Tensor lse, "
    "Tensor d_out, float? scale, SymInt block_size, str order, SymInt[]? cu_q, SymInt[]? cu_k) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    8, _compute_sparse_grad, lambda q, k, v, ids, sinks, *_: _fake_gradients(q, k, v, sinks),
    _save_nothing, _no_second_gradient)


_aside: Optional[torch.cuda.Stream] = None  # on which index_kl runs; None: on the current one


@contextmanager
def kl_aside(stream: Optional[torch.cuda.Stream]):
    """Within, index_kl runs on this stream of the GPU beside what the caller queues behind it, which must not read its
    results: they are there when the context ends. None: nothing changes."""
    global _aside
    before, _aside = _aside, stream
    if stream is not None:  # a capture takes it along, also where no index_kl follows
        stream.wait_stream(torch.cuda.current_stream())
    try:
        yield
    finally:
        _aside = before
        if stream is not None:
            torch.cuda.current_stream().wait_stream(stream)


def _compute_kl(*arguments):
    if _aside is None:
        return _kl_here(*arguments)
    _aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(_aside):
        found = _kl_here(*arguments)
    for tensor in arguments[:_kl.tensors]:
        if tensor is not None:
            tensor.record_stream(_aside)
    return found


def _kl_here(index_q, index_k, q, k, ids, sinks, main_lse, index_lse, scale, index_scale, teacher,
             window, softcap, block_size, cu_q, cu_k):
    kl, d_index_q, d_index_k = operations.index_kl(
        q, k, index_q, index_k, ids, softmax_scale=scale, index_scale=index_scale,
        teacher=teacher, sinks=sinks, window=window, softcap=softcap, main_lse=main_lse,
        index_lse=index_lse, block_size=block_size, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    mean = kl.mean() if kl.numel() else kl.sum()  # without rows 0
    return mean.to(torch.float32), d_index_q, d_index_k


def _fake_kl(index_q, index_k, *_):
    return (index_q.new_empty((), dtype=torch.float32),
            torch.empty_like(index_q, dtype=torch.float32),
            torch.empty_like(index_k, dtype=torch.float32))


def _save_kl(ctx, inputs, output):
    ctx.dtype = inputs[0].dtype
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*output[1:])


def _backward_kl(ctx, d_kl, *_):
    return tuple((d_kl * gradient).to(ctx.dtype) for gradient in ctx.saved_tensors) + (None,) * 14


_kl = _Operator(
    "index_kl",
    "(Tensor index_q, Tensor index_k, Tensor q, Tensor k, Tensor? ids, Tensor? sinks, "
    "Tensor? main_lse, Tensor? index_lse, float? scale, float? index_scale, str teacher, "
    "SymInt? window, float? softcap, SymInt block_size, SymInt[]? cu_q, SymInt[]? cu_k) -> (Tensor, Tensor, Tensor)",
    8, _compute_kl, _fake_kl, _save_kl, _backward_kl)


def _compute_select(index_q, *others):
    """An operator has as many results without the lse as with it."""
    ids, lse = operations._select(index_q, *others)
    return ids, index_q.new_empty(0, dtype=torch.float32) if lse is None else lse


def _fake_select(index_q, index_k, q_scales, k_scales, top_k, first, local, block_size, scale,
                 with_lse, *_):
    return (index_q.new_empty((*index_q.shape[:2], top_k), dtype=torch.int32),
            index_q.new_empty(index_q.shape[:2] if with_lse else 0, dtype=torch.float32))


def _save_constant(ctx, inputs, output):
    ctx.mark_non_differentiable(*(output if isinstance(output, tuple) else (output,)))


_select = _Operator(
    "index_select",
    "(Tensor index_q, Tensor index_k, Tensor? q_scales, Tensor? k_scales, SymInt top_k, "
    "SymInt forced_first, SymInt forced_local, SymInt block_size, float? index_scale, "
    "bool with_lse, SymInt[]? cu_q, SymInt[]? cu_k) -> (Tensor, Tensor)",
    4, _compute_select, _fake_select, _save_constant, direct=operations._select)


def _blocks(keys, block_size, cu_q, cu_k):
    """Blocks of the longest sequence."""
    ends = cu_q if cu_k is None else cu_k
    ends = [0, keys] if ends is None else ends
    return max((-((begin - end) // block_size) for begin, end in zip(ends[:-1], ends[1:])), default=0)


def _compute_scores(index_q, index_k, q_scales, k_scales, block_size, scale, cu_q, cu_k):
    return operations.index_scores(index_q, index_k, scales=(q_scales, k_scales),
                                   block_size=block_size, index_scale=scale,
                                      cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)


_scores = _Operator(
    "index_scores",
    "(Tensor index_q, Tensor index_k, Tensor? q_scales, Tensor? k_scales, SymInt block_size, "
    "float? index_scale, SymInt[]? cu_q, SymInt[]? cu_k) -> Tensor",
    4, _compute_scores,
    lambda index_q, index_k, q_scales, k_scales, block_size, scale, cu_q, cu_k: index_q.new_empty(
        (*index_q.shape[:2], _blocks(len(index_k), block_size, cu_q, cu_k)), dtype=torch.float32),
    _save_constant, by_lengths=True)


def _compute_topk(scores, top_k, first, local, block_size, cu_q, cu_k):
    return operations.select_blocks(scores, top_k, forced_first=first,
                                      forced_local=local, block_size=block_size,
                                      cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)


_topk = _Operator(
    "select_blocks",
    "(Tensor scores, SymInt top_k, SymInt forced_first, SymInt forced_local, "
    "SymInt block_size, SymInt[]? cu_q, SymInt[]? cu_k) -> Tensor",
    1, _compute_topk,
    lambda scores, top_k, *_: scores.new_empty((*scores.shape[:2], top_k), dtype=torch.int32),
    _save_constant)


def _compute_mass(q, k, sinks, scale, window, softcap, block_size, with_max, cu_q, cu_k):
    """An operator has as many results without the largest logits as with them."""
    found = operations.block_mass(q, k, softmax_scale=scale, sinks=sinks, window=window,
                                      softcap=softcap, block_size=block_size,
                                      return_max_logit=with_max, cu_seqlens_q=cu_q,
                                      cu_seqlens_k=cu_k)
    return found if with_max else (found, q.new_empty(0, dtype=torch.float32))


def _fake_mass(q, k, sinks, scale, window, softcap, block_size, with_max, cu_q, cu_k):
    shape = q.shape[0], k.shape[1], _blocks(len(k), block_size, cu_q, cu_k)
    return (q.new_empty(shape, dtype=torch.float32),
            q.new_empty(shape if with_max else 0, dtype=torch.float32))


_mass = _Operator(
    "block_mass",
    "(Tensor q, Tensor k, Tensor? sinks, float? scale, SymInt? window, float? softcap, "
    "SymInt block_size, bool with_max_logit, SymInt[]? cu_q, SymInt[]? cu_k) -> (Tensor, Tensor)",
    3, _compute_mass, _fake_mass, _save_constant, by_lengths=True)


@torch.compiler.disable
@torch.no_grad()
def _serve(compute: Callable, *arguments):
    """A call into memory of the caller's: past operators, which have outputs of their own."""
    return compute(*arguments)


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _like(function: Callable[..., Any]) -> Callable[[_Function], _Function]:
    """Puts the help of the function on arrays, which says shapes and rules, below a function's."""
    def add(own: _Function) -> _Function:
        own.__doc__ = (f"{inspect.getdoc(own)}\n\nThe help of msalab.{function.__name__}:\n\n"
                       f"{inspect.getdoc(function)}")
        return own
    return add


@_like(operations.dense_attention)
def dense_attention(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float | None = None,
                    return_softmax_lse: bool = False, sinks: Tensor | None = None, window: int | None = None,
                    softcap: float | None = None, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None) -> Any:
    """msalab.dense_attention on tensors, with gradients of q, k, v and sinks; with a window or a
    soft cap, without one.

    On a GPU the gradient's sums are in any order, which is faster and needs less memory (backend
    "cuda-unordered"), unless torch.use_deterministic_algorithms(True) asks for the same bits each
    time. All other functions here give the same bits anyway."""
    out, lse = _dense(q, k, v, sinks, softmax_scale, window, softcap, cu_seqlens_q, cu_seqlens_k)
    return (out, lse) if return_softmax_lse else out


@_like(operations.sparse_attention)
def sparse_attention(q: Tensor, k: Tensor, v: Tensor, ids: Tensor, *, scales: Any = None,
                     softmax_scale: float | None = None,
                     return_softmax_lse: bool = False, sinks: Tensor | None = None, window: int | None = None,
                     softcap: float | None = None, block_size: int = 128, order: str = "automatic",
                     out: Tensor | None = None, lse: Tensor | None = None, page_table: Tensor | None = None,
                     seqused_k: Any = None, max_seqlen_k: int | None = None, validate: bool = False,
                     cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, element: str | None = None) -> Any:
    """msalab.sparse_attention on tensors, with gradients of q, k, v and sinks; with a window or
    a soft cap, or of e4m3 operands with their scales, without one. The gradient takes a loop order
    of its own. Keys in pages, and results that go to out or lse, have no gradient, and compilers do
    not see such a call.

    element: "e4m3" rounds q, k and v, of float32, bfloat16 or float16 on any device, to e4m3 with the
    scales that msalab.store_e4m3 gives; "e4m3:unscaled" gives k and v none, and beyond 448 they become
    448. Attention is then that of e4m3 operands; out has the type of q. It may be trained: the gradient is
    that of attention at the rounded numbers, e4m3 times scale, and passes straight through the rounding,
    as if each number were what it became, and a scale a constant. So what became 448 gets a gradient like
    any other; a NaN stays one, and has the gradient that it has without rounding. The backward pass takes
    out and lse of the forward pass and is sparse_attention's, in bfloat16 on a GPU, to which the rounded
    numbers are rounded once more, and in float32 on the CPU; it rounds no probabilities. Gradients have
    the types of q, k and v. A compiler needs cu_seqlens in lists. Keys in pages, scales, out, lse and
    validate are refused beside element."""
    served = validate or not (page_table is seqused_k is max_seqlen_k is out is lse is None)
    if element is not None:
        if served or scales is not None:
            raise InputError("element rounds packed operands and makes their scales: scales, out, lse, validate and keys "
                             "in pages are not taken beside it")
        cu_seqlens_q, cu_seqlens_k = (cu if cu is None else integers(name, cu) for name, cu in (
            ("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)))
        if not torch.compiler.is_compiling():
            operations._problem(None, cu_seqlens_q, cu_seqlens_k, q, k, None, None, block_size, softmax_scale, None,
                                window, softcap)
        found = round_operands(q, k, v, element, block_size=block_size, cu_seqlens_q=cu_seqlens_q,
                               cu_seqlens_k=cu_seqlens_k)
        return attend_rounded(q, k, v, ids, found, softmax_scale=softmax_scale, sinks=sinks, window=window,
                              return_softmax_lse=return_softmax_lse, softcap=softcap, block_size=block_size, order=order,
                              cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k)
    if served:
        pages = operations._Pages(page_table, seqused_k, max_seqlen_k, validate)
        found = _serve(operations._sparse, q, k, v, ids, sinks, *operations._triple(scales), softmax_scale, window,
                       softcap, block_size, order, cu_seqlens_q, cu_seqlens_k, None, "auto", out, lse, pages)
        return found if return_softmax_lse else found[0]
    out, lse = _sparse(q, k, v, ids, sinks, *operations._triple(scales), softmax_scale, window, softcap, block_size,
                       order, cu_seqlens_q, cu_seqlens_k)
    return (out, lse) if return_softmax_lse else out


def round_operands(q: Tensor, k: Tensor, v: Tensor, element: str, *, block_size: int, cu_seqlens_q=None,
                   cu_seqlens_k=None) -> rounding.Stored:
    """What sparse_attention with an element reads of q, k and v; rounding.read() has it as numbers."""
    rounding.check_element(element)
    for name, one in (("q", q), ("k", k), ("v", v)):
        if one.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise InputError(f"{name} is {one.dtype}, must be float32, bfloat16 or float16 to be rounded to {element}")
    if v.shape != k.shape:
        raise InputError(f"v has shape {list(v.shape)}, must be that of k = {list(k.shape)}")
    ends, numbers = _key_ends(k, cu_seqlens_q, cu_seqlens_k), None
    if ends[-1] != len(k):
        raise InputError(f"k has {len(k)} tokens, must have the {ends[-1]} of cu_seqlens_k")
    if element == rounding.SCALED:
        numbers = rounding.block_numbers(ends, block_size, k.device)
    return rounding.stored(q, k, v, element, numbers)


def attend_rounded(q, k, v, ids, stored: rounding.Stored, *, softmax_scale=None, return_softmax_lse=False, sinks=None,
                   window=None, softcap=None, block_size=128, order="automatic", cu_seqlens_q=None, cu_seqlens_k=None):
    """sparse_attention with an element, of q, k and v that round_operands() has made `stored` of."""
    *values, scales = stored
    out, lse = _rounded(*values, ids, sinks, *scales, q, k, v, softmax_scale, window, softcap, block_size, order,
                        cu_seqlens_q, cu_seqlens_k)
    out = out.to(q.dtype)
    return (out, lse) if return_softmax_lse else out


@_like(operations.sparse_decode_attention)
def sparse_decode_attention(q: Tensor, k: Tensor, v: Tensor, ids: Tensor, *, cu_seqlens_k: Any = None,
                            **options: Any) -> Any:
    """msalab.sparse_decode_attention on tensors; options as sparse_attention takes here."""
    cu_q, cu_k = operations._decode_lengths(q, k, cu_seqlens_k)
    return sparse_attention(q, k, v, ids, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **options)


@_like(operations.index_scores)
def index_scores(index_q: Tensor, index_k: Tensor, *, scales: Any = None, block_size: int = 128,
                 index_scale: float | None = None, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None) -> Tensor:
    """msalab.index_scores on tensors; scores have no gradient."""
    return _scores(index_q, index_k, *operations._pair(scales), block_size, index_scale,
                   cu_seqlens_q, cu_seqlens_k)


@_like(operations.select_blocks)
def select_blocks(scores: Tensor, top_k: int, *, forced_first: int = 0, forced_local: int = 1,
                  block_size: int = 128, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None) -> Tensor:
    """msalab.select_blocks on tensors."""
    return _topk(scores, top_k, forced_first, forced_local, block_size, cu_seqlens_q,
                 cu_seqlens_k)


@_like(operations.block_mass)
def block_mass(q: Tensor, k: Tensor, *, softmax_scale: float | None = None, sinks: Tensor | None = None,
               window: int | None = None, softcap: float | None = None, block_size: int = 128,
               return_max_logit: bool = False, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None) -> Any:
    """msalab.block_mass on tensors; neither result has a gradient."""
    mass, max_logit = _mass(q, k, sinks, softmax_scale, window, softcap, block_size,
                            return_max_logit, cu_seqlens_q, cu_seqlens_k)
    return (mass, max_logit) if return_max_logit else mass


@_like(operations.index_select)
def index_select(index_q: Tensor, index_k: Tensor, top_k: int, *, scales: Any = None,
                 forced_first: int = 0, forced_local: int = 1, block_size: int = 128,
                 index_scale: float | None = None, return_index_lse: bool = False, out: Tensor | None = None,
                 page_table: Tensor | None = None, seqused_k: Any = None, max_seqlen_k: int | None = None,
                 validate: bool = False, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None) -> Any:
    """msalab.index_select on tensors; neither ids nor their lse have a gradient. Compilers do not
    see a call with keys in pages or with out."""
    if validate or not (page_table is seqused_k is max_seqlen_k is out is None):
        pages = operations._Pages(page_table, seqused_k, max_seqlen_k, validate)
        found = _serve(operations._select, index_q, index_k, *operations._pair(scales), top_k,
                       forced_first, forced_local, block_size, index_scale,
                       return_index_lse, cu_seqlens_q, cu_seqlens_k, None, "auto", out, pages)
        return found if return_index_lse else found[0]
    found = _select(index_q, index_k, *operations._pair(scales), top_k, forced_first,
                    forced_local, block_size, index_scale, return_index_lse, cu_seqlens_q,
                    cu_seqlens_k)
    return found if return_index_lse else found[0]


@_like(operations.append)
def append(pool: Tensor, rows: Tensor, page_table: Tensor, seqused_k: Any, **options: Any) -> None:
    """msalab.append on tensors."""
    _serve(functools.partial(operations.append, **options), pool, rows, page_table, seqused_k)


@_like(operations.index_kl)
def index_kl(q: Tensor, k: Tensor, index_q: Tensor, index_k: Tensor, ids: Tensor | None = None, *,
             softmax_scale: float | None = None, index_scale: float | None = None, teacher: str = "mean",
             sinks: Tensor | None = None, window: int | None = None, softcap: float | None = None,
             main_lse: Tensor | None = None, index_lse: Tensor | None = None, block_size: int = 128,
             cu_seqlens_q: Any = None, cu_seqlens_k: Any = None) -> Any:
    """The mean over rows of msalab.index_kl, a float32 scalar with gradients of index_q and
    index_k. q, k and sinks, the teacher's, get none. Give the main_lse of the forward pass on a GPU:
    without it a slower kernel answers."""
    return _kl(index_q, index_k, _teachers(q), _teachers(k), ids, _teachers(sinks), main_lse,
               index_lse, softmax_scale, index_scale, teacher, window, softcap, block_size,
               cu_seqlens_q, cu_seqlens_k)[0]


def _teachers(tensor):
    """Without a gradient. What has none, or is no tensor, stays as it is."""
    return tensor.detach() if getattr(tensor, "requires_grad", False) else tensor


# The names of the paper's authors, as in operations.py.
msa_proxy_score = index_scores
msa_topk_select = select_blocks
msa_index_select = index_select
msa_sparse_attention = sparse_attention
msa_sparse_decode_attention = sparse_decode_attention
msa_block_mass = block_mass
msa_index_kl = index_kl
