# SPDX-License-Identifier: MIT
"""Algorithm 1 of the paper (alg:msa-train) as a module to drop into a training script."""

import functools
from typing import Any

import torch
from torch import Tensor, nn

from . import rounding
from . import torch as m
from .arguments import INDEX_DIM
from .operations import InputError, _positive
from .selectors import Rule

EPSILON = 1e-6  # of RMS norms


class RMSNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.to(x.dtype)
        return nn.functional.rms_norm(x, weight.shape, weight, EPSILON).to(x.dtype)


def rotation(positions: Tensor, frequencies: Tensor, dtype) -> tuple[Tensor, Tensor]:
    """What turn() takes for RoPE at positions [...] by frequencies [n] float64: [..., 1, 2 n] twice."""
    angles = positions[..., None, None].double() * frequencies
    cosine, sine = angles.cos().to(dtype), angles.sin().to(dtype)
    return torch.cat([cosine, cosine], -1), torch.cat([-sine, sine], -1)


def turn(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """RoPE of x [..., H, d]: channel c turns with channel c + n, the channels from 2n on pass."""
    width = cosines.shape[-1]
    if width < x.shape[-1]:
        return torch.cat([turn(x[..., :width], cosines, sines), x[..., width:]], -1)
    return torch.addcmul(x * cosines, x.roll(width // 2, -1), sines)


def plain_frequencies(rotary_dim: int, theta: float, device=None) -> Tensor:
    """Of plain RoPE: theta^(-2c / rotary_dim), [rotary_dim / 2] float64"""
    channels = torch.arange(rotary_dim // 2, dtype=torch.float64, device=device)
    return theta ** (-2 * channels / max(rotary_dim, 1))


@functools.cache
def frequencies_of(values: tuple, device) -> Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device)


class IndexBranch(nn.Module):
    """index_q [N, groups, index_dim] and index_k [N, 1, index_dim] of x [N, dim] at positions [N]
    (eq:msa-index-proj). frequencies: of RoPE, [rotary_dim / 2] float64."""

    def __init__(self, dim: int, groups: int, index_dim: int, frequencies: Tensor, norm: bool = True):
        super().__init__()
        self.index_dim = index_dim
        # As bits, which move with a module, and stay what they are when its type becomes another.
        self.register_buffer("frequency_bits", frequencies.view(torch.int64), persistent=False)
        self.q_proj = nn.Linear(dim, groups * index_dim, bias=False)
        self.k_proj = nn.Linear(dim, index_dim, bias=False)
        self.q_norm = RMSNorm(index_dim) if norm else nn.Identity()
        self.k_norm = RMSNorm(index_dim) if norm else nn.Identity()

    @property
    def frequencies(self) -> Tensor:
        return self.frequency_bits.view(torch.float64)

    def forward(self, x: Tensor, positions: Tensor):
        return self.turned(x, rotation(positions, self.frequencies, torch.promote_types(x.dtype, torch.float32)))

    def turned(self, x: Tensor, turns: tuple[Tensor, Tensor]):
        """Of x at the positions of which `turns` is the rotation() by the frequencies: one product, and what follows
        in the type of `turns`, as it is served (indexer.IndexBranch)."""
        made = nn.functional.linear(x, torch.cat([self.q_proj.weight, self.k_proj.weight]))
        heads = made.unflatten(1, (-1, self.index_dim)).to(turns[0].dtype)
        if isinstance(self.q_norm, RMSNorm):
            weights = torch.cat([self.q_norm.weight.expand(heads.shape[1] - 1, -1), self.k_norm.weight[None]])
            heads = nn.functional.rms_norm(heads, heads.shape[-1:], eps=EPSILON) * weights
        heads = turn(heads, *turns).to(made.dtype)
        return heads[:, :-1].contiguous(), heads[:, -1:].contiguous()


def select_and_attend(q: Tensor, k: Tensor, v: Tensor, index_q: Tensor, index_k: Tensor, rule: Rule, cu,
                      *, sparse: bool, kl: bool = True, kl_full_support: bool = False, sinks=None,
                      softmax_scale=None, element: str | None = None):
    """Algorithm 1 behind its projections: (heads [N, Hq, dh], ids, kl). Not sparse, the warm-up: the Main
    Branch attends to all visible keys, ids are None, and KL is over them. index_k [N, index_dim]. element: of
    m.sparse_attention; the teacher of KL is attention at the rounded q and k."""
    packed = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
    main = {"sinks": sinks, "softmax_scale": softmax_scale, **packed}
    ids = index_lse = None
    if sparse:
        found = m.index_select(
            index_q, index_k, rule.top_k, block_size=rule.block_size, return_index_lse=not q.is_cuda,
            forced_first=rule.forced_first, forced_local=rule.forced_local, **packed)
        ids, index_lse = (found, None) if q.is_cuda else found  # on a GPU index_kl sorts the ids once, for its lse, too
        if element is None:
            heads, main_lse = m.sparse_attention(q, k, v, ids, block_size=rule.block_size,
                                                 return_softmax_lse=True, **main)
        else:
            stored = m.round_operands(q, k, v, element, block_size=rule.block_size, **packed)
            heads, main_lse = m.attend_rounded(q, k, v, ids, stored, block_size=rule.block_size,
                                               return_softmax_lse=True, **main)
            if kl:
                q, k, _ = rounding.read(stored, cu, rule.block_size, q.dtype)
    else:
        heads, main_lse = m.dense_attention(q, k, v, return_softmax_lse=True, **main)
    if not kl:
        return heads, ids, q.new_zeros(())
    support = ids
    if kl_full_support and sparse:  # of which the forward pass knows nothing
        support = index_lse = None
        with torch.no_grad():  # the fast kernel of a GPU asks for it
            main_lse = m.dense_attention(q, k, v, return_softmax_lse=True, **main)[1]
    return heads, ids, m.index_kl(q, k, index_q, index_k, support, main_lse=main_lse,
                                  index_lse=index_lse, block_size=rule.block_size, **main)


class MSAttention(nn.Module):
    """Causal attention with an Index Branch that selects its blocks of keys.

    dim: channels of the input; query_heads, kv_heads, head_dim: of the Main Branch, with an RMS
    norm on the heads of q and k and RoPE on their first rotary_dim channels (all where None);
    index_dim, index_rotary: of the Index Branch, likewise. block_size, top_k, forced_first,
    forced_local: which keys are kept. What the paper's appendix varies:

    sink: a learnable logit per query head (app:prelim-learnable-sink).
    value_head: the Index Branch has values and an output of its own, so that the loss of the model
        reaches its projections (app:prelim-grad-source).
    detach: no gradient through index_q and index_k into the input (eq:msa-detach).
    kl: the KL loss (eq:msa-kl); kl_full_support: over all visible keys after the warm-up, too.

    element: "e4m3" or "e4m3:unscaled", in which the Main Branch has q, k and v after the warm-up, with the
    gradient that msalab.torch.sparse_attention says; the teacher of KL is its attention at them.

    forward(x [N, dim], cu_seqlens=None, sparse=True) returns (y [N, dim], kl). x holds packed
    sequences, one without cu_seqlens. sparse=False is the warm-up: the Main Branch attends to all
    visible keys, and KL is over them. kl: a scalar, the mean over queries and groups, to be added
    to the loss times its weight; 0 without a KL loss. The largest intermediate is linear in N. On
    CUDA the module may be bfloat16, or run under torch.autocast; sinks take part as float32.
    """

    def __init__(self, dim: int, query_heads: int, kv_heads: int, head_dim: int, *,
                 index_dim: int = INDEX_DIM, block_size: int = 128, top_k: int = 16,
                 forced_first: int = 0, forced_local: int = 1, rotary_dim: int | None = None,
                 index_rotary: int | None = None, rope_theta: float = 1e5, index_norm: bool = True,
                 sink: bool = False, value_head: bool = False, detach: bool = True, kl: bool = True,
                 kl_full_support: bool = False, element: str | None = None):
        super().__init__()
        rounding.check_element(element)
        self.element = element
        for name, value in (("dim", dim), ("query_heads", query_heads), ("kv_heads", kv_heads),
                            ("head_dim", head_dim), ("index_dim", index_dim)):
            _positive(name, value)
        if query_heads % kv_heads:
            raise InputError(f"query_heads is {query_heads}, must be a multiple of kv_heads = "
                             f"{kv_heads}")
        self.rotary_dim = head_dim if rotary_dim is None else rotary_dim
        self.index_rotary = index_dim if index_rotary is None else index_rotary
        for name, rotary, width in (("rotary_dim", self.rotary_dim, head_dim),
                                    ("index_rotary", self.index_rotary, index_dim)):
            if rotary % 2 or not 0 <= rotary <= width:
                raise InputError(f"{name} is {rotary}, must be even and from 0 to {width}")
        self.dim = dim
        self.query_heads, self.kv_heads, self.head_dim = query_heads, kv_heads, head_dim
        self.index_dim, self.rope_theta = index_dim, rope_theta
        self.block_size, self.top_k = block_size, top_k
        self.forced_first, self.forced_local = forced_first, forced_local
        self.detach, self.kl, self.kl_full_support = detach, kl, kl_full_support
        self.q_proj = nn.Linear(dim, query_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(dim, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(dim, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(query_heads * head_dim, dim, bias=False)
        self.q_norm, self.k_norm = RMSNorm(head_dim), RMSNorm(head_dim)
        self.sinks = nn.Parameter(torch.zeros(query_heads)) if sink else None
        self.indexer = IndexBranch(dim, kv_heads, index_dim,
                                   plain_frequencies(self.index_rotary, rope_theta), index_norm)
        self.value_head = value_head
        if value_head:
            self.indexer.v_proj = nn.Linear(dim, index_dim, bias=False)
            self.indexer.o_proj = nn.Linear(kv_heads * index_dim, dim, bias=False)

    def forward(self, x: Tensor, cu_seqlens: Any = None, sparse: bool = True) -> tuple[Tensor, Tensor]:
        if x.dim() != 2 or x.shape[1] != self.dim:
            raise InputError(f"x has shape {list(x.shape)}, must be [N, {self.dim}]")
        n = len(x)
        cu = [0, n] if cu_seqlens is None else m.integers("cu_seqlens", cu_seqlens)
        if cu[-1:] != [n]:
            raise InputError(f"cu_seqlens is {cu}, must end with {n}, the rows of x")
        positions = torch.cat([torch.arange(end - begin, device=x.device)
                               for begin, end in zip(cu[:-1], cu[1:])])
        frequencies = plain_frequencies(self.rotary_dim, self.rope_theta, x.device)
        q, k = (norm(projection(x).unflatten(1, (-1, self.head_dim)))
                for projection, norm in ((self.q_proj, self.q_norm), (self.k_proj, self.k_norm)))
        turns = rotation(positions, frequencies, q.dtype)
        q, k = turn(q, *turns), turn(k, *turns)
        v = self.v_proj(x).unflatten(1, (-1, self.head_dim))
        index_q, index_k = self.indexer(x.detach() if self.detach else x, positions)
        rule = Rule(self.block_size, self.top_k, self.forced_first, self.forced_local)
        heads, ids, kl = select_and_attend(
            q, k, v, index_q, index_k[:, 0].contiguous(), rule, cu, sparse=sparse, kl=self.kl,
            kl_full_support=self.kl_full_support, element=self.element,
            sinks=None if self.sinks is None else self.sinks.float())
        y = self.o_proj(heads.flatten(1))
        if self.value_head:
            # V_idx is shared by the groups like K_idx, and always passes its gradient.
            many_k = index_k.expand(-1, self.kv_heads, -1).contiguous()
            many_v = self.indexer.v_proj(x)[:, None].expand(-1, self.kv_heads, -1).contiguous()
            packed = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
            heads = (m.dense_attention(index_q, many_k, many_v, **packed) if ids is None else
                     m.sparse_attention(index_q, many_k, many_v, ids, block_size=self.block_size,
                                        **packed))
            y = y + self.indexer.o_proj(heads.flatten(1))
        return y, kl
