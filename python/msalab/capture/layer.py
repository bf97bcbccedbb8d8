# SPDX-License-Identifier: MIT
"""What is captured of one layer, and what may be written of it.

Letters and shapes are those of data/FORMAT.md: S tokens of one sequence, Hq query heads, Hkv GQA
groups, dh head dimension, didx index dimension.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import ml_dtypes
import numpy as np

from ..ending import Refusal

bfloat16 = np.dtype(ml_dtypes.bfloat16)
ELEMENTS = (np.dtype(np.float16), bfloat16, np.dtype(np.float32))
FIELDS = ("x", "q", "k", "v", "index_q", "index_k", "qsa_q", "qsa_k")
STATES = ("post_rope", "pre_rope", "none")
OWN_ATTENTION = ("sparse",)
ROPE_LAYOUTS = ("interleaved",)
ATTRIBUTES = {  # name -> its type
    "q_state": str, "k_state": str, "softmax_scale": float, "rotary_dim": int, "rope_theta": float,
    "rope_scaling": str, "rope_layout": str, "rope_inv_freq": np.ndarray, "rope_attention_factor": float,
    "sliding_window": int, "attention_chunk": int, "softcap": float, "sinks": np.ndarray,
    "own_attention": str, "own_block_size": int, "own_top_k": int, "qsa_compress": int}
HEAD_DIMS = range(16, 512 + 1)  # what the programs compute with
INDEX_DIMS = range(16, 256 + 1)


class CaptureError(Refusal):
    """What was asked for cannot be captured or converted; the text names what is wrong."""


@dataclass
class Layer:
    """Arrays are float16, bfloat16 (ml_dtypes) or float32, of one type or several; stored in one
    that holds them all exactly."""

    q: np.ndarray  # [S, Hq, dh]
    k: np.ndarray  # [S, Hkv, dh], never repeated to the query heads
    v: np.ndarray  # [S, Hkv, dh]
    softmax_scale: float
    x: np.ndarray | None = None  # [S, d_model], input of the projections, after the norm
    index_q: np.ndarray | None = None  # [S, Hkv, didx]
    index_k: np.ndarray | None = None  # [S, didx]
    qsa_q: np.ndarray | None = None  # [S, H, d], of QSA's own indexer
    qsa_k: np.ndarray | None = None  # [S / qsa_compress, d], a key of so many tokens
    q_state: str = "post_rope"
    k_state: str = "post_rope"
    rotary_dim: int | None = None  # 0: no RoPE
    rope_theta: float | None = None  # of plain RoPE: frequency c is rope_theta^(-2c/rotary_dim)
    rope_layout: str | None = None  # "interleaved": pairs of channels 2c and 2c + 1, else half apart
    rope_scaling: str | None = None  # of other RoPE: the model's parameters (JSON)
    rope_inv_freq: np.ndarray | None = None  # [rotary_dim/2] and the frequencies it ran with,
    rope_attention_factor: float | None = None  # and what cosine and sine are multiplied by
    sliding_window: int | None = None  # a query sees so many tokens, itself included
    attention_chunk: int | None = None  # it sees its own chunk of so many tokens, up to itself
    softcap: float | None = None  # logits are softcap * tanh(logits / softcap)
    sinks: np.ndarray | None = None  # [Hq], one more logit in each head's softmax, without a value
    own_attention: str | None = None  # "sparse": the model attends to selected keys only
    own_block_size: int | None = None  # of the model's own Index Branch: tokens of a block,
    own_top_k: int | None = None  # and blocks that it selects
    qsa_compress: int | None = None  # with qsa_k
    weights: dict[str, np.ndarray] = field(default_factory=dict)  # of the index projections

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in FIELDS if getattr(self, name) is not None}

    def element(self) -> np.dtype:
        types = {array.dtype for array in self.arrays().values()}
        return types.pop() if len(types) == 1 else np.dtype(np.float32)

    def attributes(self) -> dict:
        """The attributes of the layer's group, those that are known."""
        return {name: getattr(self, name) for name in ATTRIBUTES
                if getattr(self, name) is not None}


def require(condition, message: str):
    if not condition:
        raise CaptureError(message)


def native(values: np.ndarray) -> np.ndarray:
    """The same numbers in this processor's order of bytes."""
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def as_bfloat16(words: np.ndarray) -> np.ndarray:
    """The numbers of which these are the 16 bits, in any order of bytes."""
    return native(words).view(bfloat16)


def is_storable(text: str) -> bool:
    """HDF5 holds Unicode without NUL."""
    try:
        return "\0" not in text and text.encode() is not None
    except UnicodeEncodeError:
        return False


def check(layer: Layer, place: str, lengths=None):
    """Refuses what msa-activations cannot hold; `place` begins the messages ("layer 3"). lengths: of the
    sequences in it; None: one."""
    for name, array in layer.arrays().items():
        check_element(array, f"{place}: {name}")
        rank = 2 if name in ("x", "index_k", "qsa_k") else 3
        require(array.ndim == rank, f"{place}: {name} has shape {array.shape}, must have {rank} "
                f"axes: token{', head' if rank == 3 else ''}, channel")
        if name == "qsa_k" and layer.qsa_compress:
            rows = sum(int(length) // layer.qsa_compress for length in lengths or [len(layer.q)])
            require(len(array) == rows, f"{place}: qsa_k has {len(array)} keys, must have {rows} of "
                    f"{layer.qsa_compress} tokens")
            continue
        require(len(array) == len(layer.q),
                f"{place}: {name} has {len(array)} tokens, q has {len(layer.q)}")
    (_, query_heads, head_dim), kv_heads = layer.q.shape, layer.k.shape[1]
    require(layer.k.shape[2] == head_dim,
            f"{place}: k has head dim {layer.k.shape[2]}, q has {head_dim}")
    require(layer.v.shape == layer.k.shape, f"{place}: v has shape {layer.v.shape}, k has "
            f"{layer.k.shape}; they must agree (latent attention cannot be captured)")
    require(kv_heads >= 1 and query_heads >= 1 and query_heads % kv_heads == 0,
            f"{place}: {query_heads} query heads, {kv_heads} key-value heads; the first must be a "
            "multiple of the second (GQA)")
    require(not is_repeated(layer), f"{place}: k has {kv_heads} heads, as many as q, and heads 0 "
            "and 1 are the same; k and v must not be repeated to the query heads, one head of each "
            "group is enough")
    require(head_dim in HEAD_DIMS, f"{place}: head dim {head_dim}, must be from {HEAD_DIMS[0]} to "
            f"{HEAD_DIMS[-1]}")
    require((layer.index_q is None) == (layer.index_k is None),
            f"{place}: index_q and index_k come together")
    if layer.index_q is not None:
        require(layer.index_q.shape[1:] == (kv_heads, layer.index_k.shape[1]),
                f"{place}: index_q has shape {layer.index_q.shape}, index_k {layer.index_k.shape}; "
                f"there is one index head for each of the {kv_heads} groups")
        require(layer.index_k.shape[1] in INDEX_DIMS,
                f"{place}: index dim {layer.index_k.shape[1]}, must be from {INDEX_DIMS[0]} to "
                f"{INDEX_DIMS[-1]}")
    require((layer.qsa_q is None) == (layer.qsa_k is None) == (layer.qsa_compress is None),
            f"{place}: qsa_q, qsa_k and qsa_compress come together")
    if layer.qsa_q is not None:
        require(layer.qsa_q.shape[2] == layer.qsa_k.shape[1] and layer.qsa_k.shape[1] in INDEX_DIMS,
                f"{place}: qsa_q has {layer.qsa_q.shape[2]} channels, qsa_k {layer.qsa_k.shape[1]}; must "
                f"be the same, from {INDEX_DIMS[0]} to {INDEX_DIMS[-1]}")
    for state in (layer.q_state, layer.k_state):
        require(state in STATES, f"{place}: state '{state}', must be one of {', '.join(STATES)}")
    check_attributes(layer, place)
    for name, array in layer.arrays().items():
        check_finite(array, f"{place}: {name}")
    check_weights(layer, place)


def check_element(array: np.ndarray, what: str):
    require(not isinstance(array, np.ma.MaskedArray), f"{what} is a masked array, and msa-activations has no "
            "place for a mask")
    require(array.dtype in ELEMENTS, f"{what} is {array.dtype}, must be float16, bfloat16 or float32")


def check_weights(layer: Layer, place: str):
    """Of the index projections, whose shapes are known; others must be numbers."""
    channels, outputs = None if layer.x is None else layer.x.shape[1], {}
    if layer.index_q is not None:
        (_, groups, dim) = layer.index_q.shape
        outputs = {"w_index_q": groups * dim, "w_index_k": dim}
    for name, array in layer.weights.items():
        what = f"{place}: weights/{name}"
        check_element(array, what)
        rows = outputs.get(name)
        wanted = (rows, channels or (array.shape[1] if array.ndim == 2 else "channels of x"))
        require(rows is None or array.shape == wanted, f"{what} has shape {list(array.shape)}, must have "
                f"{list(wanted)}")
        check_finite(array, what)


def check_attributes(layer: Layer, place: str):
    """Refuses values that mean nothing; `place` begins the messages."""
    def one(name, rule, holds):
        value = getattr(layer, name)
        require(value is None or holds(value), f"{place}: {name} is {value}, must be {rule}")

    def numbers(name, size, rule, hold):
        values = getattr(layer, name)
        if values is not None:
            require(values.shape == (size,), f"{place}: {name} has shape {values.shape}, must have "
                    f"{size} values")
            for i in np.flatnonzero(~hold(values))[:1]:
                raise CaptureError(f"{place}: {name}[{i}] is {values[i]}, must be {rule}")

    def positive(value):
        return np.isfinite(value) and value > 0

    (_, query_heads, head_dim), rotary_dim = layer.q.shape, layer.rotary_dim or 0
    for name in ("softmax_scale", "rope_theta", "rope_attention_factor", "softcap"):
        one(name, "finite and positive", positive)
    for name in ("sliding_window", "attention_chunk", "own_block_size", "own_top_k", "qsa_compress"):
        one(name, "at least 1", lambda value: value >= 1)
    one("rotary_dim", f"even, from 0 to {head_dim}",
        lambda value: value % 2 == 0 and 0 <= value <= head_dim)
    one("rope_scaling", "Unicode without NUL", is_storable)
    one("rope_layout", " or ".join(ROPE_LAYOUTS), lambda value: value in ROPE_LAYOUTS)
    one("own_attention", " or ".join(OWN_ATTENTION), lambda value: value in OWN_ATTENTION)
    numbers("sinks", query_heads, "finite", np.isfinite)
    numbers("rope_inv_freq", rotary_dim // 2, "finite and not negative",
            lambda values: np.isfinite(values) & (values >= 0))


def is_repeated(layer: Layer) -> bool:
    """Was a group's head written once per query head? The programs' own rule: as many key-value
    heads as query heads, and two of them alike in every channel of both, in the last token."""
    if layer.k.shape[1] != layer.q.shape[1] or layer.k.shape[1] < 2 or not len(layer.k):
        return False
    heads = [array[-1, :2] for array in (layer.k, layer.v)]
    return all((first == second).all() and (first != first[0]).any() for first, second in heads)


def check_finite(array: np.ndarray, what: str):
    bad = ~np.isfinite(array)
    if not bad.any():
        return
    first = tuple(int(i[0]) for i in bad.nonzero())
    axes = ("token", "head", "channel") if array.ndim == 3 else ("token", "channel")
    where = ", ".join(f"{axis} {i}" for axis, i in zip(axes, first))
    raise CaptureError(f"{what} holds {bad.sum()} values that are NaN or Inf; the first: {where} "
                       f"is {float(array[first])}")
