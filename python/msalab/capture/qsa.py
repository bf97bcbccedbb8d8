# SPDX-License-Identifier: MIT
"""QSA, the indexer inside Qwen's attention modules (transformers, models/qwen4_exp): some query heads, one
key for every `compress_ratio` neighbouring tokens, which is the mean of their raw keys before norm and
RoPE."""

from __future__ import annotations

import sys
from contextlib import contextmanager

import numpy as np
import torch

from .index_branch import ROTATE
from .layer import require
from .tensors import to_numpy


class QsaIndexer:
    """While observed, keeps what the indexer is given."""

    def __init__(self, indexer: torch.nn.Module):
        self._indexer = indexer
        self._given = None
        self.compress = int(indexer.compress_ratio)

    @classmethod
    def of(cls, attention: torch.nn.Module) -> QsaIndexer | None:
        indexer = getattr(attention, "indexer", None)
        known = all(hasattr(indexer, name) for name in ("index_qk_proj", "q_layernorm", "k_layernorm",
                                                        "compress_ratio", "index_n_heads"))
        return cls(indexer) if known else None

    @contextmanager
    def observed(self):
        def keep(_, args, kwargs):
            hidden, positions = (*args, *kwargs.values())[:2]
            self._given = hidden, positions

        hook = self._indexer.register_forward_pre_hook(keep, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()

    @torch.no_grad()
    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """qsa_q [S, H, d] and qsa_k [S / compress, d] of the one sequence, in the model's own steps."""
        require(self._given is not None, f"{type(self._indexer).__name__} was not called")
        (hidden, (cos, sin)), self._given = self._given, None
        of = self._indexer
        rotate = getattr(sys.modules[type(of).__module__], ROTATE)
        heads, channels = of.index_n_heads, of.index_head_dim
        both = of.index_qk_proj(hidden)[0].unflatten(-1, (-1, channels))
        queries = rotate(of.q_layernorm(both[None, :, :heads]), cos=cos, sin=sin, unsqueeze_dim=2)[0]
        count = len(both) // self.compress
        means = both[:count * self.compress, heads].unflatten(0, (count, self.compress)).float().mean(1)
        keys = of.k_layernorm(means.to(both.dtype))
        first = slice(0, count * self.compress, self.compress)
        keys = rotate(keys.unsqueeze(1), cos=cos[0, first], sin=sin[0, first]).squeeze(1)
        return to_numpy(queries), to_numpy(keys)
