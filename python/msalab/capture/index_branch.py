# SPDX-License-Identifier: MIT
"""The Index Branch that a model already has, as MiniMax-M3 in transformers: an `indexer` inside
the attention module, with one index query head per group and one shared index key head."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch

from .layer import require
from .tensors import of_one_sequence, to_numpy

ROTATE = "apply_rotary_pos_emb"  # the function that gives index_q and index_k as they are scored


class IndexBranch:
    """While observed, keeps what the indexer's RoPE returns."""

    def __init__(self, indexer: torch.nn.Module):
        self._indexer = indexer
        self._rotated = None
        self.block_size = getattr(indexer, "block_size", None)  # tokens
        self.top_k = getattr(indexer, "topk_blocks", None)  # blocks

    @classmethod
    def of(cls, attention: torch.nn.Module) -> IndexBranch | None:
        """None where there is no indexer, or one that selects no blocks (latent, one for all heads)."""
        indexer = getattr(attention, "indexer", None)
        if not all(isinstance(getattr(indexer, name, None), torch.nn.Linear)
                   for name in ("q_proj", "k_proj")):
            return None
        index_heads = indexer.q_proj.out_features / indexer.k_proj.out_features
        groups = attention.config.num_attention_heads / attention.num_key_value_groups
        if index_heads == groups:
            return cls(indexer)
        require(not hasattr(indexer, "topk_blocks"), f"{type(indexer).__name__} has {index_heads:g} index heads; "
                f"there is one index head for each of the {groups:g} groups")
        return None

    @contextmanager
    def observed(self):
        namespace = sys.modules[type(self._indexer).__module__]
        rotate = getattr(namespace, ROTATE)

        def keep(*args, **kwargs):
            self._rotated = rotate(*args, **kwargs)
            return self._rotated

        replaced = patch.object(namespace, ROTATE, keep)

        def begin(*_):
            replaced.start()

        def end(*_):
            replaced.stop()

        hooks = [self._indexer.register_forward_pre_hook(begin),
                 self._indexer.register_forward_hook(end, always_call=True)]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def take(self) -> tuple[np.ndarray, np.ndarray]:
        """index_q [S, Hkv, didx] and index_k [S, didx]"""
        require(self._rotated is not None,
                f"{type(self._indexer).__name__} did not call {ROTATE}: not an indexer known here")
        (index_q, index_k), self._rotated = self._rotated, None
        return of_one_sequence(index_q), of_one_sequence(index_k)[:, 0]

    def weights(self) -> dict[str, np.ndarray]:
        """Projections, rows are outputs, and the factors of the norms."""
        weights = {}
        for side in ("q", "k"):
            projection, norm = (getattr(self._indexer, f"{side}_{part}", None)
                                for part in ("proj", "norm"))
            weights[f"w_index_{side}"] = to_numpy(_weight(projection))
            if norm is not None:
                weights[f"index_{side}_norm"] = to_numpy(_norm_factor(norm))
        return weights


@torch.no_grad()
def _weight(projection: torch.nn.Linear) -> torch.Tensor:
    """[outputs, inputs]; of a quantised projection what it multiplies with, which it makes of unit vectors."""
    weight, shape = projection.weight, (projection.out_features, projection.in_features)
    if weight.is_floating_point() and weight.shape == shape and weight.dtype.itemsize > 1:
        return weight
    dtype = getattr(projection, "compute_dtype", None) or torch.get_default_dtype()
    units = torch.eye(projection.in_features, dtype=dtype, device=weight.device)
    found = projection(units)
    return (found if projection.bias is None else found - projection.bias).T


@torch.no_grad()
def _norm_factor(norm: torch.nn.Module) -> torch.Tensor:
    """What an RMS norm multiplies with, float32: its weight, or 1 + weight in Gemma's manner."""
    weight = norm.weight
    offset = (norm(torch.ones_like(weight)) - weight).float().mean().round()
    return weight.float() + offset
