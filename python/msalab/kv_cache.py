# SPDX-License-Identifier: MIT
"""The cache of a model that attends with MSA (msalab.transformers.Cache), and the operators that read it.

Of each layer that selects by an Index Branch keys, values and index keys lie in one place each, [rows, capacity, ...]:
pages as long as a row. A row holds its tokens without padding, so its blocks begin with its first token. New tokens are
written behind the last ones, nothing is copied, and nothing that the host does grows with the number of tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor
from transformers import cache_utils

from . import operations
from .nn import rotation
from .operations import InputError
from .selectors import Rule
from .torch import result_dtype

PAGE = 64  # a capacity is a multiple: what the tuned kernels ask of pages
GROWTH = 8  # a cache without a capacity grows by this part of what it holds
FEW = 64  # new tokens of all rows, with which a call reads lengths on the GPU


def require(condition, text: str):
    if not condition:
        raise InputError(text)


# Operators. Tokens are [rows, new, heads, width], pools [rows, capacity, heads, width]; lengths [rows] int32 count the new
# tokens, too; `known` says them on the host. A row shorter than the new tokens begins with padding.

_library = torch.library.Library("msalab", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)


class _Operator:
    """The operator msalab::name for compilers; other calls are of compute itself."""

    def __init__(self, name: str, schema: str, compute, fake):
        self.compute = compute
        _library.define(name + schema, tags=_TAGS)
        for device in ("CPU", "CUDA"):
            _library.impl(name, compute, device)
        torch.library.register_fake(f"msalab::{name}", fake, lib=_library)
        self.operator = getattr(torch.ops.msalab, name).default

    def __call__(self, *arguments):
        return (self.operator if torch.compiler.is_compiling() else self.compute)(*arguments)


@dataclass(frozen=True)
class _Calls:
    """How operations on pages are called: of the rows of tokens, the last ones each."""

    where: dict
    spans: tuple | None  # first new token of each row that is none of padding; None: no row has padding

    @classmethod
    def of(cls, tokens: Tensor, pool: Tensor, table: Tensor, lengths: Tensor, known) -> _Calls:
        rows, new = tokens.shape[:2]
        where = {"page_table": table}
        if known is None and tokens.is_cuda:
            return cls(where | {"seqused_k": lengths, "max_seqlen_k": pool.shape[1],
                                "cu_seqlens_q": list(range(0, rows * new + 1, new))}, None)
        known = lengths.tolist() if known is None else list(known)
        firsts = [max(new - length, 0) for length in known]
        ends = [0]
        for first in firsts:
            ends.append(ends[-1] + new - first)
        return cls(where | {"seqused_k": known, "cu_seqlens_q": ends}, tuple(firsts) if any(firsts) else None)

    def packed(self, tokens: Tensor) -> Tensor:
        """[N, ...]"""
        if self.spans is None:
            return tokens.flatten(0, 1).contiguous()
        return torch.cat([_movable(row[first:]) for row, first in zip(tokens, self.spans)]).view(tokens.dtype)

    def unpacked(self, packed: Tensor, rows: int, new: int) -> Tensor:
        """Padding is 0."""
        if self.spans is None:
            return packed.view(rows, new, *packed.shape[1:])
        found = packed.new_zeros((rows, new, *packed.shape[1:]))
        for row, (first, (begin, end)) in enumerate(zip(self.spans, pairwise(self.where["cu_seqlens_q"]))):
            found[row, first:] = packed[begin:end]
        return found

    def is_whole(self, known, new: int) -> bool:
        """Is every key one of the new tokens?"""
        return known is not None and max(known) <= new

    def lengths(self) -> dict:
        """Of calls on the new tokens alone."""
        ends = self.where["cu_seqlens_q"]
        return {"cu_seqlens_q": ends, "cu_seqlens_k": ends}


def _select(index_q, index_k, index_keys, table, lengths, top_k, first, local, block_size, known=None):
    calls = _Calls.of(index_q, index_keys, table, lengths, known)
    rule = {"forced_first": first, "forced_local": local, "block_size": block_size}
    if calls.is_whole(known, index_q.shape[1]):
        ids = operations.index_select(calls.packed(index_q), calls.packed(index_k), top_k, **rule, **calls.lengths())
    else:
        ids = operations.index_select(calls.packed(index_q), index_keys, top_k, **rule, **calls.where)
    return calls.unpacked(ids, *index_q.shape[:2])


select = _Operator(
    "cache_select", "(Tensor index_q, Tensor index_k, Tensor index_keys, Tensor table, Tensor lengths, SymInt top_k, "
    "SymInt first, SymInt local, SymInt block_size, SymInt[]? known) -> Tensor", _select,
    lambda index_q, index_k, index_keys, table, lengths, top_k, *_:
        index_q.new_empty((*index_q.shape[:3], top_k), dtype=torch.int32))


def _attend(q, k, v, keys, values, ids, sinks, q_scales, table, lengths, block_size, scale, softcap, known=None):
    calls = _Calls.of(q, keys, table, lengths, known)
    options = {"sinks": sinks, "block_size": block_size, "softmax_scale": scale, "softcap": softcap}
    if q_scales is not None:
        options["scales"] = calls.packed(q_scales), None, None
    if calls.is_whole(known, q.shape[1]):
        pools, where = (calls.packed(k), calls.packed(v)), calls.lengths()
    else:
        pools, where = (keys, values), calls.where
    out = operations.sparse_attention(calls.packed(q), *pools, calls.packed(ids), **options, **where)
    return calls.unpacked(out, *q.shape[:2])


attend = _Operator(
    "cache_attend", "(Tensor q, Tensor k, Tensor v, Tensor keys, Tensor values, Tensor ids, Tensor? sinks, "
    "Tensor? q_scales, Tensor table, Tensor lengths, SymInt block_size, float? scale, float? softcap, SymInt[]? known) "
    "-> Tensor",
    _attend, lambda q, *_: torch.empty_like(q, dtype=result_dtype(q), memory_format=torch.contiguous_format))


class KeyLength(int):
    """Of a mask: the keys of a layer, and whose cache they are in."""

    cache = None

    @classmethod
    def of(cls, length, cache):
        made = cls(length)
        made.cache = cache
        return made


def stays(tensor: Tensor) -> Tensor:
    """Tells compilers that the tensor stays where it is."""
    if not torch.compiler.is_compiling():
        torch._dynamo.mark_static_address(tensor)
    return tensor


@dataclass
class Rows:
    """What all layers of a cache share: the rows of the batch."""

    capacity: int | None  # of each row; None: it grows
    unit: int  # a capacity is a multiple
    count: int = 0  # rows; 0: not known yet
    begins: list = field(default_factory=list)  # tokens of padding of each row
    seen: Tensor | None = None  # of a cache of fixed capacity: tokens of a row with its padding, where the keys are
    begins_there: Tensor | None = None  # `begins` and
    lengths: Tensor | None = None  # tokens of the rows, int32, likewise;
    held: int = 0  # of which these are for rows of so many tokens
    known: list | None = None  # of a cache of fixed capacity: the lengths of the pass under way, where the host has them
    at: int | None = None  # of a cache of fixed capacity: what `seen` is, where the host knows it
    begun: bool = False  # has every row a token that is no padding?
    table: Tensor | None = None  # [rows, 1]
    places: Tensor | None = None  # of the pass under way: where its tokens go, [rows, new]; of padding below 0
    turns: tuple = ((), ())  # likewise: RoPE's frequencies, and nn.rotation of the tokens by them

    @property
    def fixed(self) -> bool:
        return self.capacity is not None

    def start(self, count: int, device):
        if self.count:
            require(count == self.count, f"the cache holds {self.count} rows, the input has {count}")
            require(device == self.table.device, f"the cache lies on {self.table.device}, the keys are on {device}")
            return
        self.count = count
        if len(self.begins) != count:
            self.begins = [0] * count
        self.begins_there = stays(torch.tensor(self.begins, dtype=torch.int32, device=device))
        self.lengths = stays(torch.zeros(count, dtype=torch.int32, device=device) - self.begins_there)
        self.table = stays(torch.arange(count, dtype=torch.int32, device=device)[:, None].contiguous())
        self.held = 0
        if self.fixed:
            self.seen = stays(torch.zeros((), dtype=torch.int64, device=device))

    def begin_at(self, begins: list):
        """So many tokens of padding the rows have from now on."""
        if begins == self.begins:
            return
        self.begins = begins
        if self.count:
            self._measure()

    def _measure(self):
        self.begins_there.copy_(torch.tensor(self.begins, dtype=torch.int32))
        self.lengths.copy_((self.seen if self.fixed else self.held) - self.begins_there)

    def lengths_at(self, seen: int) -> Tensor:
        """Those of a row of `seen` tokens."""
        if seen != self.held:
            self.lengths += seen - self.held
            self.held = seen
        return self.lengths

    def turned(self, rope: tuple, frequencies: Tensor) -> tuple[Tensor, Tensor]:
        """nn.rotation of the tokens of the pass by the frequencies, which are `rope` on the host."""
        if self.turns[0] != rope:
            self.turns = rope, rotation(self.places.clamp(min=0), frequencies, torch.float32)
        return self.turns[1]

    def choose(self, choose):
        """Other rows in the place of these: choose(tensor)."""
        self.begins = choose(torch.tensor(self.begins)).tolist() if any(self.begins) else self.begins
        count = len(choose(self.table))
        if not any(self.begins):
            self.begins = [0] * count
        if count != self.count:
            held, seen, self.count = self.held, self.seen, 0
            self.start(count, self.table.device)
            self.held, self.seen = held, seen
        self._measure()


def _movable(tensor: Tensor) -> Tensor:
    """The same memory; e4m3 as bytes, since PyTorch moves these everywhere."""
    return tensor.view(torch.uint8) if tensor.dtype is torch.float8_e4m3fn else tensor


class CachedLayer(cache_utils.CacheLayerMixin):
    """Keys, values and index keys of one layer. `seen`: tokens of a row, those of its padding among them, where the
    capacity is not fixed. in_e4m3: keys and values are float8_e4m3fn, without scales: a scale could be known only when all
    tokens that share it have come."""

    is_sliding = False
    is_croppable = True

    def __init__(self, number: int, rows: Rows, leads: bool, in_e4m3: bool):
        super().__init__()
        self.number, self.rows, self.leads, self.in_e4m3 = number, rows, leads, in_e4m3
        self.index_keys = None
        self.seen = 0
        self.pools = ()

    @property
    def is_compileable(self) -> bool:
        return self.rows.fixed

    @property
    def max_cache_len(self) -> int:
        return self.get_max_length()

    @property
    def batch_size(self) -> int:
        return self.rows.count or -1

    def lazy_initialization(self, key_states, value_states):
        """By the first tokens [rows, heads, new, width]."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.rows.start(len(key_states), self.device)
        # The kernels of the CPU take float32 alone.
        self.kept = torch.float32 if self.device.type == "cpu" else self.dtype
        for name, states in (("keys", key_states), ("values", value_states)):
            setattr(self, name, self._pool(torch.float8_e4m3fn if self.in_e4m3 else self.kept, states.shape[1],
                                           states.shape[3], key_states.shape[2]))
        self.is_initialized = True

    def _pool(self, dtype, *shape) -> Tensor:
        """Zeros [rows, capacity, heads, width] for so many tokens, the last of `shape`."""
        *shape, tokens = shape
        capacity = self.rows.capacity if self.rows.fixed else tokens + tokens // GROWTH
        capacity = max(-(-capacity // self.rows.unit), 1) * self.rows.unit
        return stays(torch.zeros((self.rows.count, capacity, *shape), dtype=dtype, device=self.device))

    def _all(self):
        return [name for name in ("keys", "values", "index_keys") if getattr(self, name) is not None]

    def grow(self, tokens: int):
        """To hold so many tokens of a row."""
        for name in self._all():
            old = getattr(self, name)
            if tokens > old.shape[1]:
                new = self._pool(old.dtype, *old.shape[2:], tokens)
                new[:, :old.shape[1]] = old
                setattr(self, name, new)

    def update(self, key_states, value_states, *args, **kwargs):
        """What it is given: attention writes it. InputError where there is no room for it."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        require(key_states.dtype == self.dtype and key_states.shape[1::2] == (self.keys.shape[2], self.keys.shape[3]),
                f"the cache holds keys of {self.keys.shape[2]} heads of {self.keys.shape[3]} channels, {self.dtype}; those "
                f"of layer {self.number} are {key_states.shape[1]} of {key_states.shape[3]}, {key_states.dtype}: it is of "
                "another model")
        self.rows.start(len(key_states), key_states.device)
        return key_states, value_states

    def step(self, branch, new: int):
        """Begins to take in `new` tokens: their index keys of the Index Branch get a place. Returns the lengths of the
        rows with them, on the device, and on the host, or None."""
        rows = self.rows
        if branch is not None and self.index_keys is None:
            self.index_keys = self._pool(torch.int8 if branch.int8 else self.kept, branch.width, new)
        if rows.fixed:
            if self.leads:
                rows.known = self._known(new)
                rows.seen += new
                rows.lengths += new
                self._hold_room()
            lengths, known = rows.lengths, rows.known
        else:
            self.seen += new
            self.grow(self.seen)
            lengths = rows.lengths_at(self.seen)
            known = [max(self.seen - begin, 0) for begin in rows.begins]
            known = None if len(rows.begins) * new <= FEW and lengths.is_cuda else known
        if self.leads:
            rows.places = lengths[:, None] + torch.arange(-new, 0, device=lengths.device)
            rows.turns = (), ()
        return lengths, known

    def end(self):
        """Of the pass, in the last layer: compilers would hand over what only lives in it."""
        self.rows.places, self.rows.turns = None, ((), ())

    def write(self, k, v, index_k, lengths, known):
        """The tokens [rows, new, ...] of the pass, which step() began."""
        rows, new = self.rows, k.shape[1]
        pools = [(k, self.keys), (v, self.values)] + ([] if index_k is None else [(index_k, self.index_keys)])
        at = rows.at if rows.fixed else self.seen
        if torch.compiler.is_compiling():
            # From the kernels that make the tokens. A place below 0 counts from the row's end: no token comes there, since
            # a row's padding takes room, too.
            for tokens, pool in pools:
                _movable(pool).index_put_((rows.table.long(), rows.places), _movable(tokens))
        elif at is not None and not any(rows.begins):
            for tokens, pool in pools:
                pool.narrow(1, at - new, new).copy_(tokens)
        else:
            calls = _Calls.of(k, self.keys, rows.table, lengths, known)
            for tokens, pool in pools:
                operations.append(pool, calls.packed(tokens), **calls.where)

    def _unseen(self) -> bool:
        """Do calls now go into a graph, for lengths that the host does not know?"""
        return torch.compiler.is_compiling() or self.rows.seen.is_cuda and torch.cuda.is_current_stream_capturing()

    def _known(self, new: int) -> list | None:
        """The lengths of the rows with `new` tokens more, of a cache of fixed capacity, which must have room for them.
        None where the host does not need to know them."""
        rows = self.rows
        if self._unseen():
            rows.at = None
            return None
        many = new * rows.count > FEW or not rows.seen.is_cuda
        seen = (int(rows.seen) if many or rows.at is None else rows.at) + new
        self.require_room(seen)
        rows.at = seen
        return [max(seen - begin, 0) for begin in rows.begins] if many else None

    def _hold_room(self):
        """In graphs, which ask for nothing before they run, a full cache is an error of the device."""
        if self._unseen():
            torch._assert_async(self.rows.seen <= self.rows.capacity, f"msalab: the cache has room for {self.rows.capacity} "
                                "tokens of a row")

    def require_room(self, seen: int):
        most = self.get_max_length()
        require(not self.rows.fixed or seen <= most, f"the cache has room for {most} tokens of a row, and would hold {seen}")

    def get_mask_sizes(self, query_length: int):
        seen = self.get_seq_length()
        length = self.get_max_length() if self.rows.fixed else seen + query_length
        return (length if torch.compiler.is_compiling() else KeyLength.of(length, self)), 0

    def get_seq_length(self):
        if not self.rows.fixed:
            return self.seen
        return self.rows.seen if self.rows.seen is not None else 0

    def get_max_length(self) -> int:
        return self.rows.capacity if self.rows.fixed else -1

    get_max_cache_shape = get_max_length  # its name in older versions of transformers

    def take_mask(self, mask: Tensor | None, new: int, valid_tokens):
        """Of a pass of `new` tokens: where its rows begin. mask [rows, seen + new]: which tokens are no padding."""
        if mask is None or new == 1 and self.rows.begun:
            return
        seen = int(self.get_seq_length())
        begins = []
        for number, row in enumerate(mask[:, :seen + new].cpu()):
            first, last = valid_tokens(row, number)
            require(last in (0, seen + new), f"row {number} of attention_mask has padding on the right; with a cache it "
                    "must be on the left")
            begins.append(first if last else seen + new)
        if seen and self.rows.count:
            for number, (old, now) in enumerate(zip(self.rows.begins, begins, strict=True)):
                require(old == now or old >= seen <= now, f"row {number} of attention_mask begins with token {now}, in "
                        f"the cache with {old}")
        self.rows.begin_at(begins)
        self.rows.begun = max(begins) < seen + new

    def reset(self):
        for name in self._all():
            getattr(self, name).zero_()
        self.seen = 0
        if self.leads and self.rows.count:
            self.rows.begin_at([0] * self.rows.count)
            self.rows.lengths.zero_()
            self.rows.held, self.rows.at, self.rows.begun = 0, None, False
            if self.rows.fixed:
                self.rows.seen.zero_()

    def crop(self, tokens_to_remove: int):
        """The last tokens of every row leave, as many as the number below 0 says; of an older transformers: all but so
        many, where the number is above 0."""
        seen, tokens_to_remove = int(self.get_seq_length()), int(tokens_to_remove)  # a tensor, of some transformers
        leaving = min(tokens_to_remove, 0) if tokens_to_remove <= 0 else min(tokens_to_remove - seen, 0)
        require(-leaving <= seen, f"crop() is asked to remove {-leaving} tokens, the cache holds {seen}")
        if not self.rows.fixed:
            self.seen += leaving
        elif self.leads and self.rows.count:
            self.rows.seen += leaving
            self.rows.lengths += leaving
            self.rows.at = None

    def _choose(self, choose):
        for name in self._all():
            old = getattr(self, name)
            new = choose(_movable(old)).view(old.dtype)
            if new.shape == old.shape:
                old.copy_(new)
            else:
                setattr(self, name, stays(new.contiguous()))
        if self.leads and self.rows.count:
            self.rows.choose(choose)

    def reorder_cache(self, beam_idx):
        if self.is_initialized:
            self._choose(lambda pool: pool.index_select(0, beam_idx.to(pool.device)))

    def batch_repeat_interleave(self, repeats: int):
        if self.is_initialized:
            self._choose(lambda pool: pool.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices):
        if self.is_initialized:
            self._choose(lambda pool: pool[indices.to(pool.device) if isinstance(indices, Tensor) else indices])

    def offload(self):
        for name in self._all():
            setattr(self, name, getattr(self, name).to("cpu", non_blocking=True))

    def prefetch(self):
        for name in self._all():
            setattr(self, name, getattr(self, name).to(self.device, non_blocking=True))


def unit_of(rules) -> int:
    """A capacity that is a multiple of it has whole blocks, and pages that the tuned kernels take."""
    return math.lcm(PAGE, *(rule.block_size for rule in rules if isinstance(rule, Rule)))
