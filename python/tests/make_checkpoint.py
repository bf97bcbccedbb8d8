# SPDX-License-Identifier: MIT
"""A checkpoint.h5 of msa-pretrain with random weights, one layer, as far as msalab.capture reads it."""

import json

import h5py
import numpy as np

OPTIONS = {"layers": 1, "model_dim": 24, "hidden_dim": 40, "query_heads": 4, "kv_heads": 2,
           "head_dim": 8, "rotary_dim": 4, "rope_theta": 1e4, "context": 64, "attention": "msa",
           "block_size": 16, "top_k": 2, "forced_first": 0, "forced_local": 1, "sink": False,
           "index_dim": 8, "index_rotary": 4, "index_norm": "rms", "signals": "kl"}
SHAPES = {"self_attn.q_proj": (32, 24), "self_attn.k_proj": (16, 24), "self_attn.v_proj": (16, 24),
          "self_attn.o_proj": (24, 32), "self_attn.q_norm": (8,), "self_attn.k_norm": (8,),
          "self_attn.indexer.q_proj": (16, 24), "self_attn.indexer.k_proj": (8, 24),
          "self_attn.indexer.q_norm": (8,), "self_attn.indexer.k_norm": (8,),
          "mlp.gate_proj": (40, 24), "mlp.up_proj": (40, 24), "mlp.down_proj": (24, 40),
          "input_layernorm": (24,), "post_attention_layernorm": (24,)}


def make_checkpoint(path, **options):
    rng = np.random.default_rng(2)
    shapes = {"embed_tokens": (256, 24), "norm": (24,), "lm_head": (256, 24),
              **{f"layers.0.{name}": shape for name, shape in SHAPES.items()}}
    with h5py.File(path, "w") as file:
        file.attrs["format"], file.attrs["format_version"] = "msa-results", 3
        file.create_group("run").attrs.update(program="msa-pretrain",
                                              options=json.dumps(OPTIONS | options))
        for name, shape in shapes.items():
            file[f"weights/{name}.weight"] = rng.standard_normal(shape, np.float32)
    return path
