# SPDX-License-Identifier: MIT
"""Index Branches that msa-fit-indexer has fitted, as tensors (eq:msa-index-proj)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor

from .nn import turn
from .operations import InputError

EPSILON = 1e-6  # of the RMS norms (core/indexer/index_branch.h)


@dataclass
class IndexBranch:
    """Of one layer. Projections, rows are outputs: w_q [Hkv * didx, d_model], w_k [didx, d_model];
    norm_q, norm_k [didx] or None; RoPE's frequencies [rotary_dim / 2] float64."""

    groups: int
    w_q: Tensor
    w_k: Tensor
    norm_q: Tensor | None
    norm_k: Tensor | None
    frequencies: Tensor

    def to(self, device) -> IndexBranch:
        tensors = (self.w_q, self.w_k, self.norm_q, self.norm_k, self.frequencies)
        return IndexBranch(self.groups, *(None if tensor is None else tensor.to(device)
                                          for tensor in tensors))

    def queries(self, x: Tensor, positions: Tensor) -> Tensor:
        """index_q [n, Hkv, didx] float32 of the hidden states x [n, d_model] at positions [n]."""
        return self._heads(x, self.w_q, self.norm_q, positions)

    def keys(self, x: Tensor, positions: Tensor) -> Tensor:
        """index_k [n, didx] float32."""
        return self._heads(x, self.w_k, self.norm_k, positions)[:, 0]

    def _heads(self, x, weight, norm, positions):
        heads = (x.float() @ weight.T).unflatten(-1, (-1, len(self.w_k)))
        if norm is not None:
            heads = heads * torch.rsqrt(heads.square().mean(-1, keepdim=True) + EPSILON) * norm
        return turn(heads, positions, self.frequencies)


def read(path) -> dict[int, IndexBranch]:
    """Layer -> its Index Branch, of the results.h5 of msa-fit-indexer, or the folder it lies in.
    InputError naming the file and what is wrong."""
    path = Path(path)
    path = path / "results.h5" if path.is_dir() else path
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        with h5py.File(path, "r") as file:
            if "fit" not in file or not len(file["fit"]):
                raise InputError(f"{path}: has no fitted weights (/fit); those of msa-fit-indexer "
                                 "are in the results.h5 beside its indexer.h5")
            return {int(layer): _branch(f"{path}: /fit/{layer}", group["weights"])
                    for layer, group in sorted(file["fit"].items(), key=lambda one: int(one[0]))}
    except InputError:
        raise
    except Exception as error:  # the library raises errors of many types on damaged files
        raise InputError(f"{path}: cannot be read: {type(error).__name__}: {error}") from error


def _branch(place: str, group) -> IndexBranch:
    if "w_index_w" in group:
        raise InputError(f"{place}/weights has w_index_w: an indexer of --architecture dsa, must be "
                         "of msa")
    if "w_gate_k" in group:
        raise InputError(f"{place}/weights has w_gate_k: a gate of --architecture seerattention, must "
                         "be of msa")
    form = {name: group.attrs[name] for name in ("groups", "index_dim", "model_dim", "rms_norm",
                                                 "rotary_dim", "rope_theta")}
    groups, dim, model_dim = (int(form[name]) for name in ("groups", "index_dim", "model_dim"))
    rotary = int(form["rotary_dim"])

    def values(name, *shape, dtype=np.float32):
        found = np.asarray(group[name][()], dtype)
        if found.shape != shape or not np.isfinite(found).all():
            raise InputError(f"{place}/weights/{name}: shape {list(found.shape)}, must be "
                             f"{list(shape)} of finite numbers")
        return torch.from_numpy(found)

    if rotary % 2 or not 0 <= rotary <= dim:
        raise InputError(f"{place}: rotary_dim is {rotary}, must be even and from 0 to {dim}")
    if "rope_frequencies" in group:
        frequencies = values("rope_frequencies", rotary // 2, dtype=np.float64)
    else:
        theta = float(form["rope_theta"])
        frequencies = theta ** (-torch.arange(rotary // 2, dtype=torch.float64) * 2
                                / max(rotary, 1))
    norms = [values(f"index_{side}_norm", dim) if form["rms_norm"] else None for side in "qk"]
    return IndexBranch(groups, values("w_index_q", groups * dim, model_dim),
                       values("w_index_k", dim, model_dim), *norms, frequencies)


def as_safetensors(branches: dict[int, IndexBranch]) -> bytes:
    """A file of the weights under the names of transformers' MiniMax-M3:
    model.layers.<l>.self_attn.indexer.{q_proj,k_proj,q_norm,k_norm}.weight. Its norms multiply by
    1 + weight, so a norm's weight less 1 is stored; a branch without norms cannot be said there:
    InputError."""
    from safetensors.torch import save

    tensors = {}
    for layer, branch in branches.items():
        if branch.norm_q is None:
            raise InputError(f"layer {layer}: the Index Branch has no RMS norms, and MiniMax-M3's "
                             "has: msa-fit-indexer --norm rms fits them")
        name = f"model.layers.{layer}.self_attn.indexer"
        tensors |= {f"{name}.q_proj.weight": branch.w_q.contiguous(),
                    f"{name}.k_proj.weight": branch.w_k.contiguous(),
                    f"{name}.q_norm.weight": branch.norm_q - 1,
                    f"{name}.k_norm.weight": branch.norm_k - 1}
    return save(tensors, {"format": "pt"})
