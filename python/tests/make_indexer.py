# SPDX-License-Identifier: MIT
"""Results of msa-fit-indexer with random weights, for models of any size."""

import json

import h5py
import numpy as np


def make_indexer(path, layers, *, groups, dim, model_dim, norm=True, rotary=None, theta=1e4,
                 frequencies=None, seed=3, first=0, shared_by={}):
    rng = np.random.default_rng(seed)
    rotary = dim if rotary is None else rotary
    with h5py.File(path, "w") as file:
        file.attrs["format"], file.attrs["format_version"] = "msa-results", 3
        file.create_group("run").attrs["options"] = json.dumps(
            {"block_size": 16, "top_k": 3, "forced_local": 1, "forced_first": first})
        for layer in layers:
            if layer in shared_by:
                file[f"fit/{layer}/layers"] = [layer, *shared_by[layer]]
            group = file.create_group(f"fit/{layer}/weights")
            group.attrs.update({"groups": groups, "index_dim": dim, "model_dim": model_dim,
                                "rms_norm": int(norm), "rotary_dim": rotary, "rope_theta": theta})
            group["w_index_q"] = rng.standard_normal((groups * dim, model_dim), np.float32)
            group["w_index_k"] = rng.standard_normal((dim, model_dim), np.float32)
            if norm:
                for side in "qk":
                    group[f"index_{side}_norm"] = rng.uniform(0.5, 2, dim).astype(np.float32)
            if frequencies is not None:
                group["rope_frequencies"] = np.asarray(frequencies, np.float64)
    return path
