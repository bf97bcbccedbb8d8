# SPDX-License-Identifier: MIT
"""A model that is captured with fitted Index Branches: what they make of its hidden states stands beside its
activations, as if the model had them."""

from __future__ import annotations

import numpy as np

from . import fitted
from .capture import Model
from .layer import Layer, require
from .rope import apply_rope


class WithIndexBranches:
    """For capture(): `model` with index_q and index_k of `fits`, the Index Branches that fitted.read(path) gave, and
    the blocks that they are for. They stay outside of the model's attention. Its layers are those that have one."""

    def __init__(self, model: Model, fits: dict, path):
        self._model, self._fits, self._path, self._rule = model, fits, path, fitted.rule(path)
        self.model_id, self.model_config, self.producer = model.model_id, model.model_config, model.producer
        self.without_attention = getattr(model, "without_attention", {})
        self.layers = [number for number in model.layers if number in fits]
        self.lacking = [number for number in model.layers if number not in fits]
        require(self.layers, f"{path}: has Index Branches of layers {sorted(fits)}; those of "
                f"{model.model_id} are {list(model.layers)}")

    def run(self, tokens, layers, record):
        def with_index(number: int, layer: Layer):
            fit, place = self._fits[number], f"{self._path}: layer {number}"
            require(layer.index_q is None, f"{place}: the model has an Index Branch of its own")
            groups, width = layer.k.shape[1], layer.x.shape[1]
            require((fit.groups, fit.w_q.shape[1]) == (groups, width), f"{place}: the Index Branch has {fit.groups} "
                    f"groups and takes {fit.w_q.shape[1]} channels, the model has {groups} and {width}")
            layer.index_q = _heads(layer, fit, fit.w_q, fit.norm_q)
            layer.index_k = _heads(layer, fit, fit.w_k, fit.norm_k)[:, 0]
            layer.own_block_size, layer.own_top_k = self._rule["block_size"], self._rule["top_k"]
            layer.weights = {"w_index_q": fit.w_q, "w_index_k": fit.w_k} | (
                {} if fit.norm_q is None else {"index_q_norm": fit.norm_q, "index_k_norm": fit.norm_k})
            record(number, layer)

        self._model.run(tokens, layers, with_index)


def _heads(layer: Layer, fit: fitted.Fitted, weight, norm) -> np.ndarray:
    """[S, heads, didx] of eq:msa-index-proj, in the type of the layer's queries."""
    heads = (layer.x.astype(np.float32) @ weight.T).reshape(len(layer.x), -1, len(fit.w_k))
    if norm is not None:
        heads = heads / np.sqrt(np.square(heads).mean(-1, keepdims=True) + fitted.EPSILON) * norm
    return apply_rope(heads, np.arange(len(heads)), fit.frequencies).astype(layer.q.dtype)
