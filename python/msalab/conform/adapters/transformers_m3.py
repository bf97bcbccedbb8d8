# SPDX-License-Identifier: MIT
"""MiniMax-M3 of transformers: its own indexer, block mask and eager attention, on the operands of a case in place of
its projections, norms and cache."""

from types import SimpleNamespace

import numpy as np

from .common import refuse

RULES = {"ties": "torch.topk, which names no order of equal values",
         "NaN spreads": "its mask is added to the logits"}


def about():
    from importlib.metadata import version
    return f"transformers {version('transformers')}, MiniMax-M3 eager"


def answer(given):
    import torch
    from transformers.models.minimax_m3_vl import modeling_minimax_m3_vl as m3
    refuse(given, "page_table", "scores", "k8", "index_q8", "sinks", "kl")
    if given["forced_first"]:
        raise NotImplementedError("it forces no first blocks")
    parts = [one_sequence(torch, m3, given, s) for s in range(len(given["cu_seqlens_q"]) - 1)]
    return {"precision": "float32", **{name: np.concatenate([part[name] for part in parts]) for name in parts[0]}}


def one_sequence(torch, m3, given, s):
    q0, q1, k0, k1 = (int(given[f"cu_seqlens_{side}"][s + end]) for side in "qk" for end in (0, 1))
    queries, keys = q1 - q0, k1 - k0
    if queries > keys:
        raise NotImplementedError("more queries than keys: a row that sees nothing")
    positions = torch.arange(keys - queries, keys)[None]
    found, k = {}, given["top_k"]

    def rows(name, a, b):
        """[1, heads, tokens, d]"""
        values = torch.tensor(np.array(given[name][a:b], np.float32))
        return (values if values.ndim == 3 else values[:, None]).transpose(0, 1)[None]

    indexer = m3.MiniMaxM3VLIndexer.__new__(m3.MiniMaxM3VLIndexer)
    torch.nn.Module.__init__(indexer)
    indexer.block_size, indexer.topk_blocks, indexer.local_blocks = given["block_size"], k, given["forced_local"]
    indexer.layer_idx = 0
    if "ids" in given:
        ids = torch.tensor(np.array(given["ids"][q0:q1])).long().transpose(0, 1)[None]
        if (ids < 0).all(-1).any():
            raise NotImplementedError("a row without a block: its local block is always there")
    else:
        ids = select(torch, m3, given, indexer, rows, (q0, q1, k0, k1), positions, found)
        padded = torch.full((*ids.shape[:3], k), -1)
        padded[..., :ids.shape[3]] = ids
        found["ids"] = padded[0].transpose(0, 1).numpy()
    if {"out", "d_q"} & set(given["wants"]):
        attend(torch, m3, given, indexer, rows, (q0, q1, k0, k1), positions, ids, found)
    return found


def select(torch, m3, given, indexer, rows, ends, positions, found):
    q0, q1, k0, k1 = ends
    plain = "_plain" if "index_q_plain" in given else ""
    index_q, index_k = rows(f"index_q{plain}", q0, q1), rows(f"index_k{plain}", k0, k1)
    width = index_q.shape[3]
    indexer.head_dim, indexer.num_heads = width, index_q.shape[1]
    if plain:
        frequencies = 1.0 / given["theta"] ** (torch.arange(0, given["rotary_dim"], 2).float() / given["rotary_dim"])
        angles = torch.tensor(np.array(given["positions_k"][k0:k1])).float()[None, :, None] * frequencies
        angles = torch.cat([angles, angles], -1)
        cos, sin = angles.cos(), angles.sin()
        _, index_k = m3.apply_rotary_pos_emb(index_k, index_k, cos, sin)
        found["index_k"] = index_k[0].transpose(0, 1).reshape(given["index_k_plain"].shape).numpy()
        cos, sin = cos[:, -(q1 - q0):], sin[:, -(q1 - q0):]
        found["index_q"] = m3.apply_rotary_pos_emb(index_q, index_q, cos, sin)[0][0].transpose(0, 1).numpy()
    else:
        cos, sin = torch.ones(1, q1 - q0, width), torch.zeros(1, q1 - q0, width)
    indexer.q_proj = lambda _: index_q.transpose(1, 2).reshape(1, q1 - q0, -1)
    indexer.k_proj = lambda _: torch.zeros(1, q1 - q0, width)
    indexer.q_norm = indexer.k_norm = lambda x: x
    cache = SimpleNamespace(layers=[SimpleNamespace(update_index=lambda _: index_k)])
    return indexer.forward(torch.zeros(1, q1 - q0, 1), (cos, sin), cache, positions)


def attend(torch, m3, given, indexer, rows, ends, positions, ids, found):
    q0, q1, k0, k1 = ends
    q, k, v = rows("q", q0, q1), rows("k", k0, k1), rows("v", k0, k1)
    gradient = "d_q" in given["wants"]
    for operand in (q, k, v):
        operand.requires_grad_(gradient)
    indexer.config = SimpleNamespace(num_attention_heads=q.shape[1])
    mask = indexer.build_block_mask(ids, None, k1 - k0, q.dtype, q.device, positions)
    module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False)
    out, _ = m3.eager_attention_forward(module, q, k, v, mask, scaling=given["softmax_scale"], dropout=0.0)
    found["out"] = out[0].detach().numpy()
    if gradient:
        d_out = torch.tensor(np.array(given["d_out"][q0:q1]))[None]
        for name, values in zip(("d_q", "d_k", "d_v"), torch.autograd.grad(out, (q, k, v), d_out)):
            found[name] = values[0].transpose(0, 1).numpy()
