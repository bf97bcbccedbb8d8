# SPDX-License-Identifier: MIT
"""The operations of MSA. Equations are those of the paper, the contracts those of core/backend.h:
keys behind a query's position and blocks outside its ids have no influence, not even as NaN; the
same arguments give the same bits, whatever the number of threads."""

from __future__ import annotations

import atexit
import operator
import threading
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from ._compiled import load_compiled

__all__ = ["InputError", "Layout", "OutOfMemoryError", "SystemError", "UnsupportedError", "append", "backends",
           "block_mass", "check_pages", "dense_attention", "dense_attention_grad", "index_kl", "index_scores",
           "index_select", "layout", "msa_block_mass", "msa_index_kl", "msa_index_select", "msa_proxy_score",
           "msa_sparse_attention", "msa_sparse_attention_grad", "msa_sparse_decode_attention", "msa_topk_select",
           "select_blocks", "sparse_attention", "sparse_attention_grad", "sparse_decode_attention", "store_e4m3",
           "store_int8"]

_msalab = load_compiled()

Layout = _msalab.Layout
InputError, UnsupportedError = _msalab.InputError, _msalab.UnsupportedError
SystemError, OutOfMemoryError = _msalab.SystemError, _msalab.OutOfMemoryError
InputError.__doc__ = "An argument breaks a rule; the message names it, its value and the rule."
UnsupportedError.__doc__ = "The arguments are valid, but the backend has no answer; why, is said."
SystemError.__doc__ = "The operating system or a device refuses."
OutOfMemoryError.__doc__ = "There is not enough memory, on the host or on a device."

MUST_BE_DENSE = "must be a dense array or tensor"
_MOST = 2 ** 63 - 1
_KEPT = 32  # layouts that are kept for the next call


def backends() -> dict[str, str]:
    """Every backend by name, with the reason why it cannot start here, or ""."""
    return _msalab.backends()


def _too_large(shape, dtype) -> OutOfMemoryError:
    return OutOfMemoryError(f"an array of {' x '.join(map(str, shape))} {dtype} cannot be had")


class _Host:
    """Arrays of numpy, and backends of the CPU."""

    e4m3 = "uint8"  # the dtype that has it; numpy has its bytes
    _local = threading.local()  # such a backend is not safe for two threads

    @staticmethod
    def empty(beside, shape, dtype):
        """A new array where `beside` lies, of the named dtype."""
        try:
            return np.empty(shape, dtype)
        except (MemoryError, ValueError) as error:  # the second: more than there are addresses
            raise _too_large(shape, dtype) from error

    @staticmethod
    def empty_like(array, dtype=None):
        """Of the shape of `array`, and of its dtype or the named one."""
        return np.empty(array.shape, array.dtype if dtype is None else dtype)

    @classmethod
    def result_like(cls, array):
        """An output of attention: like q, of e4m3 as wide as the backend gives it."""
        return cls.empty_like(array, "float32" if array.dtype == np.uint8 else None)

    @staticmethod
    def on_host(array, dtype=None):
        """The array in memory of the host, tensors of a GPU as a copy of the named dtype."""
        return array

    @staticmethod
    def from_numpy(array):
        """The numpy array, or a tensor of it."""
        return array

    @staticmethod
    def is_captured(array):
        """Do calls on `array` go into a CUDA graph, which cannot wait for its values?"""
        return False

    @staticmethod
    def stored_like(array, like):
        """The array, contiguous and of the dtype of `like`."""
        if isinstance(array, np.ma.MaskedArray):
            raise InputError("rows is a masked array, whose mask no operation reads")
        try:
            return np.ascontiguousarray(array, like.dtype)
        except (TypeError, ValueError) as error:
            raise InputError(f"rows cannot be stored as {like.dtype}: {error}") from None

    @staticmethod
    def as_bytes(array):
        """The same memory."""
        try:
            return array.view(np.int8)
        except (TypeError, ValueError):
            raise InputError(f"an array of {array.dtype}, strides {list(array.strides)}, is no pool: it must be of "
                             "numbers and contiguous on its last axis") from None

    @classmethod
    def backend(cls, like, name):
        """The backend called `name` for arrays where `like` lies."""
        if name == "cuda":
            raise InputError("backend is 'cuda', but q and the other arrays lie on the CPU")
        name = "cpu" if name == "auto" else _word("backend", name)
        made = getattr(cls._local, name, None)
        if made is None:
            made = _msalab.make_backend(name)
            setattr(cls._local, name, made)
        return made

    @classmethod
    def operation(cls, like, backend, name):
        """One operation of it, to be called now."""
        return getattr(cls.backend(like, backend), name)


class _Tensors(_Host):
    """Tensors of PyTorch. On a GPU: its current stream, its allocator, and no waiting."""

    e4m3 = "float8_e4m3fn"

    def __init__(self):
        import torch
        _msalab.use_torch(torch)
        self.torch = torch
        self.dtypes = {name: getattr(torch, name)
                       for name in ("float32", "float64", "bfloat16", "int32", "int8", self.e4m3)}
        self.on_gpu = {}  # backends by name, device and stream; tensors from elsewhere find none
        if torch.cuda.is_available():
            # Private names: python/README.md says what each is worth.
            self.current = torch._C._cuda_getDevice
            self.stream = torch._C._cuda_getCurrentRawStream
            atexit.register(self.on_gpu.clear)  # while PyTorch can still take memory back

    def empty(self, beside, shape, dtype):
        try:  # a Size is read more slowly than numbers
            return self.torch.empty(*shape, dtype=self.dtypes[dtype], device=beside.device)
        except RuntimeError as error:  # of the CPU's memory; a GPU's has an error of its own
            if isinstance(error, self.torch.OutOfMemoryError):
                raise
            raise _too_large(shape, dtype) from error

    def empty_like(self, tensor, dtype=None):
        if dtype is not None:
            return self.empty(tensor, tensor.shape, dtype)
        return self.torch.empty_like(tensor)

    def result_like(self, tensor):
        if tensor.dtype is not self.dtypes[self.e4m3]:
            return self.torch.empty_like(tensor)
        return self.empty(tensor, tensor.shape, "bfloat16" if tensor.is_cuda else "float32")

    def on_host(self, tensor, dtype=None):
        if not tensor.is_cuda:
            return tensor
        return tensor.detach().to("cpu", dtype and self.dtypes[dtype])

    def from_numpy(self, array):
        return self.torch.from_numpy(array)

    def is_captured(self, tensor):
        return getattr(tensor, "is_cuda", False) and self.torch.cuda.is_current_stream_capturing()

    def stored_like(self, tensor, like):
        return tensor.to(like.dtype).contiguous()

    def as_bytes(self, tensor):
        return tensor.view(self.torch.int8)

    def backend(self, like, name):
        if not like.is_cuda:
            return _Host.backend(like, name)
        return self._of_gpu(like.get_device(), name)

    def _of_gpu(self, device, name):
        name = "cuda" if name == "auto" else _word("backend", name)
        if not name.startswith("cuda"):
            raise InputError(f"backend is {name!r}, but q and the other arrays lie on a GPU")
        at = name, device, self.stream(device)
        made = self.on_gpu.get(at)
        if made is None:
            made = self.on_gpu[at] = self._start(*at)
        return made

    def operation(self, like, backend, name):
        if not like.is_cuda:
            return getattr(_Host.backend(like, backend), name)
        device = like.get_device()
        call = getattr(self._of_gpu(device, backend), name)
        return call if device == self.current() else self._elsewhere(device, call)

    def _elsewhere(self, device, call):
        def on_device(*arguments):
            with self.torch.cuda.device(device):
                call(*arguments)
        return on_device

    def _start(self, name, device, stream):
        cuda = self.torch.cuda

        def allocate(size):
            try:
                return cuda.caching_allocator_alloc(size, device, stream)
            except cuda.OutOfMemoryError:
                return 0

        with cuda.device(device):
            return _msalab.make_torch_backend(name, device, stream, allocate,
                                              cuda.caching_allocator_delete)


_tensors = lru_cache(maxsize=1)(_Tensors)


def _kind(like):
    """_Host or _Tensors: what `like` is, or is a subclass of."""
    return _Host if type(like) is np.ndarray else _kind_of_type(type(like))


@lru_cache(maxsize=None)
def _kind_of_type(kind):
    torch = any(base.__module__.split(".")[0] == "torch" for base in kind.__mro__)
    return _tensors() if torch else _Host


def backend_of(array: Any) -> Any:
    """The backend of operations on arrays beside `array`, in this thread or PyTorch's stream: its
    name, its device, and as answered_by which of its kernels ran last."""
    return _kind(array).backend(array, "auto")


def _shape(name: str, array, *letters: str):
    if getattr(array, "is_nested", False):
        raise InputError(f"{name} is a nested tensor, {MUST_BE_DENSE}")
    shape = getattr(array, "shape", None)
    if shape is None:
        raise InputError(f"{name} is {type(array).__name__}, {MUST_BE_DENSE}")
    if len(shape) != len(letters):
        raise InputError(f"{name} has shape {list(shape)}, must be [{', '.join(letters)}]")
    return shape


def integers(name: str, values: Any) -> list[int]:
    """The values as a list; InputError with the name where one is no integer."""
    values = values.tolist() if hasattr(values, "tolist") else values
    try:
        return [operator.index(value) for value in values]
    except TypeError:
        raise InputError(f"{name} holds {values!r}, must be integers") from None


def layout(cu_seqlens_q: Any, cu_seqlens_k: Any = None, query_positions: Any = None) -> Layout:
    """Where packed sequences lie, made and checked once for many calls: pass it as `layout=`.

    cu_seqlens_q, cu_seqlens_k: [S+1] integers from 0, not decreasing; keys as queries where absent.
    query_positions: [Nq], not decreasing within a sequence, below the sequence's keys; absent: the
    last query sits on the last key. Raises InputError naming the entry and the rule it breaks.
    """
    queries = integers("cu_seqlens_q", cu_seqlens_q)
    keys = queries if cu_seqlens_k is None else integers("cu_seqlens_k", cu_seqlens_k)
    return _new_layout(queries, keys, [] if query_positions is None
                       else integers("query_positions", query_positions))


def _new_layout(queries, keys, positions) -> Layout:
    try:
        return Layout(queries, keys, positions)
    except TypeError:
        raise InputError(f"cu_seqlens_q is {list(queries)}, cu_seqlens_k {list(keys)}: they and "
                         "positions must be integers of 64 bits") from None


def _layout(given, cu_seqlens_q, cu_seqlens_k, queries: int, keys: int) -> Layout:
    if given is not None:
        if not isinstance(given, Layout):
            raise InputError(f"layout is {given!r}, must be what msalab.layout returns")
        if cu_seqlens_q is not None or cu_seqlens_k is not None:
            raise InputError("layout excludes cu_seqlens_q and cu_seqlens_k")
        return given
    if cu_seqlens_q is None and cu_seqlens_k is None:
        return _kept_layout((0, queries), (0, keys))
    q = None if cu_seqlens_q is None else tuple(integers("cu_seqlens_q", cu_seqlens_q))
    k = None if cu_seqlens_k is None else tuple(integers("cu_seqlens_k", cu_seqlens_k))
    return _kept_layout(k if q is None else q, q if k is None else k)


@lru_cache(maxsize=_KEPT)
def _kept_layout(cu_seqlens_q: tuple, cu_seqlens_k: tuple) -> Layout:
    return _new_layout(cu_seqlens_q, cu_seqlens_k, ())


_known_problems = _msalab.KnownProblems()
_find_problem = _known_problems.find


def _number(name: str, value):
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}, must be a number") from None


def _integer(name: str, value) -> int:
    try:
        found = operator.index(value)
    except TypeError:
        raise InputError(f"{name} is {value!r}, must be an integer") from None
    if not -_MOST <= found <= _MOST:
        raise InputError(f"{name} is {value}, must be an integer of 64 bits")
    return found


def _count(name: str, value):
    return None if value is None else _integer(name, value)


def _word(name: str, value) -> str:
    if not isinstance(value, str):
        raise InputError(f"{name} is {value!r}, must be a word")
    return value


def _problem(given, cu_seqlens_q, cu_seqlens_k, q=None, k=None, index_q=None, index_k=None,
             block_size=128, softmax_scale=None, index_scale=None, window=None, softcap=None):
    """Builds the Problem of these arguments, or takes the one kept for the same arguments. Errors name the argument."""
    found = _find_problem(given, cu_seqlens_q, cu_seqlens_k, q, k, index_q, index_k, block_size,
                          softmax_scale, index_scale, window, softcap)
    if found is None:
        arguments = (given, cu_seqlens_q, cu_seqlens_k, q, k, index_q, index_k, block_size,
                     softmax_scale, index_scale, window, softcap)
        found = _new_problem(*arguments)
        _known_problems.keep(found, *arguments)
    return found


def _new_problem(given, cu_seqlens_q, cu_seqlens_k, q, k, index_q, index_k, block_size,
                 softmax_scale, index_scale, window, softcap):
    index_dim = 0
    if index_q is not None:
        queries, kv_heads, index_dim = _shape("index_q", index_q, "Nq", "Hkv", "didx")
    if q is not None or index_k is None:
        queries, query_heads, head_dim = _shape("q", q, "Nq", "Hq", "dh")
        keys, kv_heads, _ = _shape("k", k, "Nk", "Hkv", "dh")
    else:  # the Index Branch alone: sizes of attention that it does not read
        keys, _ = _shape("index_k", index_k, "Nk", "didx")
        query_heads, head_dim = kv_heads, 16
    return _msalab.Problem(_layout(given, cu_seqlens_q, cu_seqlens_k, queries, keys), query_heads,
                           kv_heads, head_dim, index_dim, _integer("block_size", block_size),
                           _number("softmax_scale", softmax_scale),
                           _number("index_scale", index_scale), _count("window", window),
                           _number("softcap", softcap))


def _groups_problem(queries, groups, block_size, cu_seqlens_q, cu_seqlens_k, layout, head_dim=16):
    """Of what is per group: one head each. Without lengths one sequence with as many keys as
    queries."""
    lay = _layout(layout, cu_seqlens_q, cu_seqlens_k, queries, queries)
    return _msalab.Problem(lay, groups, groups, head_dim, 0, _integer("block_size", block_size),
                           None, None, None, None)


class _Pages(NamedTuple):
    """What says where the tokens of keys in pages lie, as sparse_attention explains it."""
    page_table: Any
    seqused_k: Any
    max_seqlen_k: Any
    validate: bool


_PACKED = _Pages(None, None, None, False)


def _lengths(given, cu_seqlens_q, cu_seqlens_k, pages, keys):
    """The first arguments of _problem; keys whose shape has its sizes, packed ones as they are, of a
    pool [pages, page_size, ...] a token of each page; and the table and lengths for the backend."""
    table, seqused_k, most, validate = pages
    if table is None:
        for name, given_too in (("seqused_k", seqused_k is not None),
                                ("max_seqlen_k", most is not None), ("validate", validate)):
            if given_too:
                raise InputError(f"{name} belongs to a page_table, which is absent")
        return given, cu_seqlens_q, cu_seqlens_k, keys, None, None
    if given is not None or cu_seqlens_k is not None or seqused_k is None:
        raise InputError("with a page_table seqused_k says the keys of each sequence; layout and "
                         "cu_seqlens_k must be absent")
    axes = getattr(keys, "shape", ())
    if len(axes) < 2 or axes[1] < 1:
        raise InputError(f"keys in pages have shape {list(axes)}, must be [pages, page_size, ...]")
    most = _count("max_seqlen_k", most)
    if validate:
        check_pages(keys, table, seqused_k, max_seqlen_k=most)
    on_device = most is not None and getattr(seqused_k, "is_cuda", False)
    used = ((most,) * len(seqused_k) if on_device
            else _known_lengths(seqused_k, most))
    queries = (range(len(used) + 1) if cu_seqlens_q is None
               else integers("cu_seqlens_q", cu_seqlens_q))
    lay = _kept_layout(tuple(queries), tuple(accumulate(used, initial=0)))
    return lay, None, None, keys[:, 0], table, seqused_k if on_device else None


def _known_lengths(seqused_k, most):
    """seqused_k on the host; of a tensor on a GPU, after its values have been waited for."""
    if _kind(seqused_k).is_captured(seqused_k):
        raise InputError("seqused_k lies on the GPU, where a CUDA graph cannot wait for its values; "
                         "max_seqlen_k says up to which value the graph is to be right")
    used = integers("seqused_k", seqused_k)
    for sequence, tokens in enumerate(used):
        if tokens < 0:
            raise InputError(f"seqused_k of sequence {sequence} is {tokens}, must be at least 0")
        if most is not None and tokens > most:
            raise InputError(f"seqused_k of sequence {sequence} is {tokens}, must be at most "
                             f"max_seqlen_k = {most}")
    return used


def check_pages(pool: Any, page_table: Any, seqused_k: Any, *, max_seqlen_k: int | None = None) -> None:
    """InputError with sequence, page and rule unless the table has a page of the pool for every token
    of each sequence, none twice in a sequence, and no sequence is longer than its row or than
    max_seqlen_k.

    Operations call it where validate is true. On a GPU it waits for the values of page_table and
    seqused_k, so it does not go into a CUDA graph: call it before the graph is replayed.
    """
    kind = _kind(page_table)
    if kind.is_captured(page_table):
        raise InputError("validate waits for the values of page_table and seqused_k, which a CUDA graph "
                         "cannot; call check_pages before the graph is replayed")
    used = _known_lengths(seqused_k, _count("max_seqlen_k", max_seqlen_k))
    _msalab.check_table(kind.on_host(page_table, "int32"), used,
                        pool.shape[1], pool.shape[0])


def dense_attention(q: Any, k: Any, v: Any, *, softmax_scale: float | None = None, return_softmax_lse: bool = False,
                    sinks: Any = None, window: int | None = None, softcap: float | None = None,
                    cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, layout: Any = None,
                    backend: str = "auto") -> Any:
    """Causal softmax attention with GQA (eq:softmax-attention).

    q [Nq, Hq, dh]; k, v [Nk, Hkv, dh]; sinks [Hq] float32, a learnable logit of each head that
    competes in its softmax. softmax_scale: 1/sqrt(dh) where absent. window: a query at position i
    attends to i - window + 1 .. i alone. softcap: a logit is softcap * tanh(logit / softcap).
    Returns out [Nq, Hq, dh] like q; with return_softmax_lse also lse [Nq, Hq] float32, the natural
    log of the sum of exp(logit). A query without a visible key has out 0 and lse -inf.
    """
    found = _dense(q, k, v, sinks, softmax_scale, window, softcap, cu_seqlens_q, cu_seqlens_k,
                   layout, backend)
    return found if return_softmax_lse else found[0]


# The arguments of the operators of torch.py, by place: each name that is passed takes host time.
def _dense(q, k, v, sinks, scale, window, softcap, cu_q, cu_k, layout=None, backend="auto"):
    kind = _kind(q)
    p = _problem(layout, cu_q, cu_k, q, k, None, None, 128, scale, None, window, softcap)
    out, lse = kind.result_like(q), kind.empty(q, q.shape[:2], "float32")
    kind.operation(q, backend, "dense_attention")(p, q, k, v, sinks, out, lse)
    return out, lse


def dense_attention_grad(q: Any, k: Any, v: Any, out: Any, lse: Any, d_out: Any, *,
                         softmax_scale: float | None = None, sinks: Any = None, cu_seqlens_q: Any = None,
                         cu_seqlens_k: Any = None, layout: Any = None, backend: str = "auto") -> Any:
    """Its gradient: (d_q, d_k, d_v), and d_sinks behind them where there are sinks.

    out [Nq, Hq, dh] and lse [Nq, Hq] are what dense_attention returned; d_out [Nq, Hq, dh]. Saved
    values that cannot be of this input raise InputError.
    """
    kind = _kind(q)
    p = _problem(layout, cu_seqlens_q, cu_seqlens_k, q, k, softmax_scale=softmax_scale)
    gradients = _empty_gradients(kind, q, k, v, sinks)
    call = kind.operation(q, backend, "dense_attention_grad")
    call(p, q, k, v, sinks, out, lse, d_out, *gradients)
    return gradients if sinks is not None else gradients[:3]


def _empty_gradients(kind, q, k, v, sinks):
    return (kind.result_like(q), kind.result_like(k), kind.result_like(v),
            None if sinks is None else kind.empty_like(sinks))


def store_int8(index_q: Any, index_k: Any, *, block_size: int = 128, cu_seqlens_q: Any = None,
               cu_seqlens_k: Any = None, layout: Any = None) -> Any:
    """float32 index_q and index_k on the CPU as int8: (index_q, index_k, scales), which index_scores
    and index_select take.

    scales is a pair of float32: [Nq, Hkv], one of each row of index_q, and [blocks of all sequences,
    1], one of each block of keys. A scale is the largest finite magnitude that shares it over 127;
    where a value is NaN, the scale is. The rules are those of core/number/operand_scales.h.
    """
    kind = _kind(index_q)
    p = _problem(layout, cu_seqlens_q, cu_seqlens_k, index_q=index_q, index_k=index_k,
                 block_size=block_size)
    scales = (kind.empty(index_q, index_q.shape[:2], "float32"),
              kind.empty(index_k, (p.all_blocks, 1), "float32"))
    stored = kind.empty_like(index_q, "int8"), kind.empty_like(index_k, "int8")
    _msalab.store_int8(p, "index_q", index_q, False, stored[0], scales[0])
    _msalab.store_int8(p, "index_k", index_k[:, None], True, stored[1][:, None], scales[1])
    return *stored, scales


def store_e4m3(q: Any, k: Any, v: Any, *, block_size: int = 128, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
               layout: Any = None) -> Any:
    """float32 q [Nq, Hq, dh] and k, v [Nk, Hkv, dh] on the CPU as e4m3: (q, k, v, scales), which sparse_attention
    takes. Tensors become torch.float8_e4m3fn, arrays of numpy their bytes, uint8.

    scales is a triple of float32: [Nq, Hq], one of each row and head of q, and twice [blocks of all sequences, Hkv],
    one of each block and head of k and of v. Blocks are counted from the start of their sequence, and a sequence
    without keys has none. A value is its e4m3 times its scale. The scale is the largest finite magnitude that shares
    it over 448, at least 2^-40 (where all are 0, too) and at most 2^40. Values round to the nearest, ties to even;
    infinities become 448 times the scale, NaN stays NaN. Other dtypes raise InputError. The rules are those of
    core/number/operand_scales.h.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (rng.standard_normal((128, heads, 64), np.float32) for heads in (8, 2, 2))
    >>> q8, k8, v8, scales = store_e4m3(q, k, v, block_size=64)
    >>> k8.dtype, [one.shape for one in scales]
    (dtype('uint8'), [(128, 8), (2, 2), (2, 2)])
    """
    kind = _kind(q)
    p = _problem(layout, cu_seqlens_q, cu_seqlens_k, q, k, block_size=block_size)
    _shape("v", v, "Nk", "Hkv", "dh")
    if tuple(v.shape) != tuple(k.shape):
        raise InputError(f"v has shape {list(v.shape)}, must be that of k = {list(k.shape)}")
    stored, scales = [], []
    for name, values in (("q", q), ("k", k), ("v", v)):
        rows = len(q) if name == "q" else p.all_blocks
        stored.append(kind.empty_like(values, kind.e4m3))
        scales.append(kind.empty(values, (rows, values.shape[1]), "float32"))
        _msalab.store_e4m3(p, name, values, name != "q", stored[-1], scales[-1])
    return *stored, tuple(scales)


def _triple(given):
    if given is None:
        return None, None, None
    try:
        q, k, v = given
    except (TypeError, ValueError):
        raise InputError("scales must be three, of q, of k and of v, each of which may be None") from None
    return q, k, v


def _pair(given):
    if given is None:
        return None, None
    try:
        first, second = given
    except (TypeError, ValueError):
        raise InputError("scales must be a pair, of index_q and of index_k") from None
    return first, second


def index_scores(index_q: Any, index_k: Any, *, scales: Any = None, block_size: int = 128,
                 index_scale: float | None = None, page_table: Any = None, seqused_k: Any = None,
                 max_seqlen_k: int | None = None, validate: bool = False, cu_seqlens_q: Any = None,
                 cu_seqlens_k: Any = None, layout: Any = None, backend: str = "auto") -> Any:
    """Scores of the Index Branch by block (eq:msa-index-score), [Nq, Hkv, B] float32.

    index_q [Nq, Hkv, didx], one head per group; index_k [Nk, didx], one head for all groups. A
    score is the maximum over the block's visible tokens of index_scale * index_q . index_k; without
    a visible token -inf, with a NaN product NaN. index_scale: 1/sqrt(didx) where absent. scales: of
    int8 operands, as store_int8 gives them. page_table, seqused_k, max_seqlen_k, validate: of keys
    in pages, as in sparse_attention; then scales of index_k are [pages, 1].
    """
    kind = _kind(index_q)
    pages = _Pages(page_table, seqused_k, max_seqlen_k, validate)
    *lengths, keys, table, used = _lengths(layout, cu_seqlens_q, cu_seqlens_k, pages, index_k)
    p = _problem(*lengths, index_q=index_q, index_k=keys, block_size=block_size,
                 index_scale=index_scale)
    scores = kind.empty(index_q, (*index_q.shape[:2], p.blocks), "float32")
    call = kind.operation(index_q, backend, "index_scores")
    call(p, index_q, index_k, *_pair(scales), scores, table, used)
    return scores


def select_blocks(scores: Any, top_k: int, *, forced_first: int = 0, forced_local: int = 1, block_size: int = 128,
                  cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, layout: Any = None, backend: str = "auto") -> Any:
    """The blocks that each query and group keeps (eq:msa-topk), [Nq, Hkv, top_k] int32.

    scores [Nq, Hkv, B] float32. Of the top_k slots the newest forced_local visible blocks (at
    least 1: the query's own) and the oldest forced_first take theirs first; the rest go to
    the visible blocks of highest score above -inf (NaN counts as -inf). Ties go to the lower id.
    Rows are ascending and padded with -1. Without cu_seqlens or layout: one sequence with as many
    keys as queries.
    """
    kind = _kind(scores)
    queries, groups, _ = _shape("scores", scores, "Nq", "Hkv", "B")
    p = _groups_problem(queries, groups, block_size, cu_seqlens_q, cu_seqlens_k, layout)
    ids = kind.empty(scores, (queries, groups, _positive("top_k", top_k)), "int32")
    call = kind.operation(scores, backend, "select_blocks")
    call(p, top_k, _integer("forced_local", forced_local), _integer("forced_first", forced_first), scores, ids)
    return ids


def _positive(name: str, value) -> int:
    if _integer(name, value) < 1:
        raise InputError(f"{name} is {value}, must be at least 1")
    return operator.index(value)


def index_select(index_q: Any, index_k: Any, top_k: int, *, scales: Any = None,
                 forced_first: int = 0, forced_local: int = 1, block_size: int = 128,
                 index_scale: float | None = None, return_index_lse: bool = False, out: Any = None,
                 page_table: Any = None, seqused_k: Any = None, max_seqlen_k: int | None = None,
                 validate: bool = False, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, layout: Any = None,
                 backend: str = "auto") -> Any:
    """ids [Nq, Hkv, top_k] int32: the blocks that each query and group keeps, the query's own among them, ascending and
    padded with -1: those of index_scores and select_blocks, without scores in memory.

    index_q [Nq, Hkv, didx], index_k [Nk, didx]; query i is at position Nk - Nq + i. block_size: tokens of a block.
    forced_first, forced_local: how many of the oldest and of the newest blocks are kept in any case, out of top_k.

    >>> rng = np.random.default_rng(0)
    >>> index_q = rng.standard_normal((256, 4, 32), np.float32)
    >>> index_k = rng.standard_normal((256, 32), np.float32)
    >>> index_select(index_q, index_k, 3, block_size=64)[255].shape
    (4, 3)
    >>> index_select(index_q, index_k, 3, block_size=64)[64, 0].tolist()  # it sees two blocks
    [0, 1, -1]

    With return_index_lse also lse [Nq, Hkv] float32, which index_kl takes: the natural log of
    the sum of exp(index_scale * index_q . index_k) over the visible tokens of the row's blocks;
    without a block -inf. scales: of int8 operands, as store_int8 gives them; they have no lse.
    out [Nq, Hkv, top_k] int32: where the ids go. page_table, seqused_k, max_seqlen_k, validate: of keys in pages
    [pages, page_size, didx], as in sparse_attention.
    """
    found = _select(index_q, index_k, *_pair(scales), top_k, forced_first, forced_local,
                    block_size, index_scale, return_index_lse, cu_seqlens_q, cu_seqlens_k,
                    layout, backend, out, _Pages(page_table, seqused_k, max_seqlen_k, validate))
    return found if return_index_lse else found[0]


def _select(index_q, index_k, q_scales, k_scales, top_k, first, local, block_size, scale, with_lse,
            cu_q, cu_k, layout=None, backend="auto", ids=None, pages=_PACKED):
    kind = _kind(index_q)
    *lengths, keys, table, used = _lengths(layout, cu_q, cu_k, pages, index_k)
    p = _problem(*lengths, None, None, index_q, keys, block_size, None, scale)
    rows = index_q.shape[:2]
    if ids is None:
        ids = kind.empty(index_q, (*rows, _positive("top_k", top_k)), "int32")
    lse = kind.empty(index_q, rows, "float32") if with_lse else None
    call = kind.operation(index_q, backend, "index_select")
    call(p, top_k, _integer("forced_local", local), _integer("forced_first", first), index_q, index_k, q_scales,
         k_scales, ids, lse, table, used)
    return ids, lse


def sparse_attention(q: Any, k: Any, v: Any, ids: Any, *, scales: Any = None, softmax_scale: float | None = None,
                     return_softmax_lse: bool = False, sinks: Any = None, window: int | None = None,
                     softcap: float | None = None, block_size: int = 128, order: str = "automatic", out: Any = None,
                     lse: Any = None, page_table: Any = None, seqused_k: Any = None, max_seqlen_k: int | None = None,
                     validate: bool = False, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, layout: Any = None,
                     backend: str = "auto") -> Any:
    """Softmax attention over the visible tokens of the selected blocks (eq:msa-sparse-attn).

    q [Nq, Hq, dh]; k, v [Nk, Hkv, dh]; out [Nq, Hq, dh]; sinks, window, softcap and lse: as in dense_attention. ids
    [Nq, Hkv, k] int32: blocks of the query's own sequence, ascending without repeats, visible to
    the query, padded with -1 at the end; a row of -1 alone gives out 0 and lse -inf. Ids that
    break this raise InputError naming query, group and rule. order: automatic, union, kv_outer or
    q_outer, the loop order. out, lse: where the results go.

    >>> rng = np.random.default_rng(0)
    >>> q, k, v = (rng.standard_normal((128, heads, 64), np.float32) for heads in (8, 2, 2))
    >>> ids = np.tile(np.int32([0, 1]), (128, 2, 1))  # both blocks of 64 tokens
    >>> ids[:64, :, 1] = -1  # which the first 64 queries do not see yet
    >>> out = sparse_attention(q, k, v, ids, block_size=64)
    >>> bool(np.allclose(out, dense_attention(q, k, v), atol=1e-5))  # nothing is left out
    True

    q, k and v may be e4m3, all three: torch.float8_e4m3fn, or of numpy their bytes in uint8 (of ml_dtypes:
    `.view(np.uint8)`). Then out is float32 on the CPU and bfloat16 on a GPU, or what out= is. scales (q, k, v), each
    float32 or None: a value is its e4m3 times its scale, without one 1. Those of q are [Nq, Hq], those of k and of v
    [blocks of all sequences, Hkv], of keys in pages [pages, Hkv], where pages are whole blocks; or [1, 1], of all
    values. store_e4m3 gives both. A scale lies from 2^-40 to 2^40: on the CPU others, 0 and NaN raise InputError
    that says which; on a GPU values are not checked. The NaN of e4m3 (bytes 0x7f and 0xff) is as any other NaN. Such
    operands have no gradient (msalab.torch.sparse_attention has one of wider operands that it rounds to e4m3);
    other operations and other dtypes beside them are refused.

    >>> q8, k8, v8, scales = store_e4m3(q, k, v, block_size=64)
    >>> coarse = sparse_attention(q8, k8, v8, ids, scales=scales, block_size=64)
    >>> coarse.dtype, bool(np.abs(coarse - out).max() < 0.3)
    (dtype('float32'), True)

    With page_table [S, max_pages] int32 and seqused_k [S], keys lie in the pages of a cache, and the
    names mean what they mean in FlashAttention: k, v are [pages, page_size, Hkv, dh], of which only
    the last axis must be contiguous, and token j of sequence s is row j % page_size of page
    page_table[s, j // page_size]. seqused_k counts the tokens of each sequence, the queries' own
    among them. cu_seqlens_q [S+1] delimits the queries, absent: one of each sequence. Of page_size
    and block_size one divides the other. ids are blocks of the sequence, not pages.

    max_seqlen_k: no sequence is longer. Where seqused_k is a tensor int32 on a GPU, its values are
    then read there, when the call runs: nothing waits for them, and a CUDA graph of the call is right
    for all lengths up to max_seqlen_k and for tables that change. validate: the values are waited
    for and checked by check_pages.
    """
    found = _sparse(q, k, v, ids, sinks, *_triple(scales), softmax_scale, window, softcap, block_size, order,
                    cu_seqlens_q, cu_seqlens_k, layout, backend, out, lse,
                    _Pages(page_table, seqused_k, max_seqlen_k, validate))
    return found if return_softmax_lse else found[0]


def _sparse(q, k, v, ids, sinks, q_scales, k_scales, v_scales, scale, window, softcap, block_size, order, cu_q, cu_k,
            layout=None, backend="auto", out=None, lse=None, pages=_PACKED):
    kind = _kind(q)
    *lengths, keys, table, used = _lengths(layout, cu_q, cu_k, pages, k)
    p = _problem(*lengths, q, keys, None, None, block_size, scale, None, window, softcap)
    out = kind.result_like(q) if out is None else out
    lse = kind.empty(q, q.shape[:2], "float32") if lse is None else lse
    call = kind.operation(q, backend, "sparse_attention")
    call(p, q, k, v, sinks, ids, _word("order", order), out, lse, table, used, q_scales, k_scales, v_scales)
    return out, lse


def sparse_attention_grad(q: Any, k: Any, v: Any, ids: Any, out: Any, lse: Any, d_out: Any, *,
                          softmax_scale: float | None = None, sinks: Any = None, block_size: int = 128,
                          order: str = "automatic", cu_seqlens_q: Any = None, cu_seqlens_k: Any = None,
                          layout: Any = None, backend: str = "auto") -> Any:
    """Its gradient, as dense_attention_grad; none through ids."""
    kind = _kind(q)
    p = _problem(layout, cu_seqlens_q, cu_seqlens_k, q, k, block_size=block_size,
                 softmax_scale=softmax_scale)
    gradients = _empty_gradients(kind, q, k, v, sinks)
    call = kind.operation(q, backend, "sparse_attention_grad")
    call(p, q, k, v, sinks, ids, _word("order", order), out, lse, d_out, *gradients)
    return gradients if sinks is not None else gradients[:3]


def sparse_decode_attention(q: Any, k: Any, v: Any, ids: Any, **options: Any) -> Any:
    """sparse_attention of one decode step: q [S, Hq, dh] holds the newest token of each of S
    sequences, whose keys cu_seqlens_k [S+1] delimits; without it S must be 1."""
    keys = options.pop("cu_seqlens_k", None)
    if options.get("layout") is None:
        options["layout"] = layout(*_decode_lengths(q, k, keys))
    return sparse_attention(q, k, v, ids, **options)


def _decode_lengths(q, k, cu_seqlens_k):
    """cu_seqlens_q and cu_seqlens_k of one decode step."""
    queries, _, _ = _shape("q", q, "S", "Hq", "dh")
    keys, _, _ = _shape("k", k, "Nk", "Hkv", "dh")
    if cu_seqlens_k is None and queries != 1:
        raise InputError(f"q holds {queries} queries: cu_seqlens_k must delimit the keys of as "
                         "many sequences")
    return list(range(queries + 1)), [0, keys] if cu_seqlens_k is None else cu_seqlens_k


def block_mass(q: Any, k: Any, *, softmax_scale: float | None = None, sinks: Any = None, window: int | None = None,
               softcap: float | None = None, block_size: int = 128, return_max_logit: bool = False,
               page_table: Any = None, seqused_k: Any = None, max_seqlen_k: int | None = None, validate: bool = False,
               cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, layout: Any = None, backend: str = "auto") -> Any:
    """Dense attention's probability by block, [Nq, Hkv, B] float32: the sum over the block's
    visible tokens, mean over the heads of the group (P_b). With return_max_logit also the maximum
    of the logit over the same tokens and heads; -inf where there is none. page_table, seqused_k,
    max_seqlen_k, validate: of keys in pages, as in sparse_attention."""
    kind = _kind(q)
    pages = _Pages(page_table, seqused_k, max_seqlen_k, validate)
    *lengths, keys, table, used = _lengths(layout, cu_seqlens_q, cu_seqlens_k, pages, k)
    p = _problem(*lengths, q, keys, block_size=block_size, softmax_scale=softmax_scale,
                 window=window, softcap=softcap)
    shape = (q.shape[0], keys.shape[1], p.blocks)
    mass = kind.empty(q, shape, "float32")
    max_logit = kind.empty(q, shape, "float32") if return_max_logit else None
    kind.operation(q, backend, "block_mass")(p, q, k, sinks, mass, max_logit, table, used)
    return (mass, max_logit) if return_max_logit else mass


def index_kl(q: Any, k: Any, index_q: Any, index_k: Any, ids: Any = None, *, softmax_scale: float | None = None,
             index_scale: float | None = None, teacher: str = "mean", sinks: Any = None, window: int | None = None,
             softcap: float | None = None, main_lse: Any = None, index_lse: Any = None, block_size: int = 128,
             return_gradient: bool = True, cu_seqlens_q: Any = None, cu_seqlens_k: Any = None, layout: Any = None,
             backend: str = "auto") -> Any:
    """The KL divergence of the index distribution from the teacher (eq:msa-kl), per row.

    The teacher is the mean (or max) over a group's heads of softmax attention on the support, with
    sinks, window and softcap as in dense_attention: the visible tokens of the blocks ids
    [Nq, Hkv, k], or all visible tokens where absent (the warm-up). Returns kl [Nq, Hkv] float64; with return_gradient also d_index_q [Nq, Hkv, didx] and
    d_index_k [Nk, didx] float32, of the mean of kl over all rows. The teacher gets no gradient.

    What the forward pass knows already need not be computed again (LSE fusion, sec:kernel:sparse_kl),
    and on a GPU the fast kernel asks for main_lse. Each is of the same support: main_lse [Nq, Hq]
    float32 from sparse_attention with these ids and sinks, or from dense_attention without ids;
    index_lse [Nq, Hkv] float32 from index_select. Values that cannot be of this input raise
    InputError on the CPU.
    """
    kind = _kind(index_q)
    _shape("index_k", index_k, "Nk", "didx")
    p = _problem(layout, cu_seqlens_q, cu_seqlens_k, q, k, index_q, block_size=block_size,
                 softmax_scale=softmax_scale, index_scale=index_scale, window=window,
                 softcap=softcap)
    kl = kind.empty(index_q, index_q.shape[:2], "float64")
    d_index_q = kind.empty_like(index_q, "float32") if return_gradient else None
    d_index_k = kind.empty_like(index_k, "float32") if return_gradient else None
    call = kind.operation(index_q, backend, "index_kl")
    call(p, q, k, index_q, index_k, ids, _word("teacher", teacher), sinks, main_lse,
         index_lse, kl, d_index_q, d_index_k)
    return (kl, d_index_q, d_index_k) if return_gradient else kl


def append(pool: Any, rows: Any, page_table: Any, seqused_k: Any, *, max_seqlen_k: int | None = None,
           validate: bool = False, cu_seqlens_q: Any = None) -> None:
    """Writes rows [Nq, ...], keys, values or index keys of the newest tokens of each sequence, into a
    pool [pages, page_size, ...] of a cache in pages.

    page_table, seqused_k, max_seqlen_k, validate and cu_seqlens_q: as in sparse_attention; seqused_k
    counts these tokens, too. Pages that another sequence reads are the caller's to copy first. Rows
    are stored in the pool's dtype. Of lengths that are read on a GPU, a row that would lie before its
    sequence's first token is left out.
    """
    kind = _kind(pool)
    pages = _Pages(page_table, seqused_k, max_seqlen_k, validate)
    lay, _, _, _, table, used = _lengths(None, cu_seqlens_q, None, pages, pool)
    at = kind.as_bytes(pool)
    rows = kind.stored_like(rows, pool)
    if len(rows) != lay.queries:
        raise InputError(f"rows has {len(rows)} rows, must have one for each query = {lay.queries}")
    if rows.shape[1:] != pool.shape[2:]:
        raise InputError(f"rows has shape {list(rows.shape)}, must be {[len(rows), *pool.shape[2:]]}")
    if len(rows.shape) == 2:  # index keys: one head
        rows, at = rows[:, None], at[:, :, None]
    call = kind.operation(pool, "auto", "append")
    call(_problem_of_tokens(lay), kind.as_bytes(rows), at, table, used)


@lru_cache(maxsize=_KEPT)
def _problem_of_tokens(lay):
    """A Problem of these tokens; append reads none of its other sizes."""
    return _msalab.Problem(lay, 1, 1, 16, 0, 1, None, None, None, None)


# The names of the paper's authors (fmha_sm100), for whoever knows them; help(msalab) has the table.
msa_proxy_score = index_scores
msa_topk_select = select_blocks
msa_index_select = index_select
msa_sparse_attention = sparse_attention
msa_sparse_attention_grad = sparse_attention_grad
msa_sparse_decode_attention = sparse_decode_attention
msa_block_mass = block_mass
msa_index_kl = index_kl
