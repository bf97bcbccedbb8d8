#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes train.h5: small transformers trained by PyTorch autograd in float64, without a line of
msalab: the loss, the KL of every layer and the gradient's norm of each step, and the gradient of
every parameter at the first step.

/start/<name>      the values that all arms start from, float32
/tokens            [steps, tokens], two sequences each; /cu_seqlens
/arms/<arm>        losses [steps], kl [steps, layers], norms [steps]; attribute config of / has, in
                   JSON, the configuration of every arm
/arms/<arm>/<name> the gradient of that parameter at the first step; a link where another arm has the
                   same bits

usage: make_train.py OUTPUT.h5     (needs torch, numpy, h5py)
"""

import json
import math
import sys

import h5py
import numpy as np
import torch

SEED, STEPS, WARMUP, RATE, CLIP, DECAY = 20261122, 20, 5, 3e-3, 1.0, 0.1
SIZES = {"vocabulary": 29, "layers": 2, "model_dim": 16, "hidden_dim": 32, "query_heads": 4,
         "kv_heads": 2, "head_dim": 16, "rotary_dim": 8, "rope_theta": 1e3, "max_positions": 64,
         "index_dim": 16, "index_rotary": 8, "block_size": 8, "top_k": 3}
CU = [0, 50, 91]
PLAIN = {"attention": "msa", "sink": False, "kl": True, "kl_weight": 0.5, "value_head": False,
         "detach": True, "kl_full_support": False, "warmup": 0}
ARMS = {
    "full": {"attention": "full"},
    "full_sink": {"attention": "full", "sink": True},
    "msa": {},
    "msa_warmup": {"warmup": WARMUP},
    "msa_full_support": {"kl_full_support": True},
    "msa_sink": {"sink": True, "warmup": WARMUP},
    "lm_signal": {"kl": False, "value_head": True},
    "both_signals": {"value_head": True, "detach": False, "warmup": WARMUP},
    "no_detach": {"detach": False},
    "window": {"attention": "window"},
    "window_sink": {"attention": "window", "sink": True},
}
S = type("Sizes", (), SIZES)


def parameters():
    """Name -> (shape, deviation or None for ones, decays)."""
    d, added = S.model_dim, 0.2 / math.sqrt(2 * S.layers)
    shapes = {"embed_tokens.weight": ((S.vocabulary, d), 0.2)}
    for n in range(S.layers):
        p = f"layers.{n}."
        shapes |= {
            p + "input_layernorm.weight": ((d,), None),
            p + "self_attn.q_proj.weight": ((S.query_heads * S.head_dim, d), 0.2),
            p + "self_attn.k_proj.weight": ((S.kv_heads * S.head_dim, d), 0.2),
            p + "self_attn.v_proj.weight": ((S.kv_heads * S.head_dim, d), 0.2),
            p + "self_attn.o_proj.weight": ((d, S.query_heads * S.head_dim), added),
            p + "self_attn.q_norm.weight": ((S.head_dim,), None),
            p + "self_attn.k_norm.weight": ((S.head_dim,), None),
            p + "self_attn.sinks": ((S.query_heads,), 0.3),
            p + "self_attn.indexer.q_proj.weight": ((S.kv_heads * S.index_dim, d), 0.2),
            p + "self_attn.indexer.k_proj.weight": ((S.index_dim, d), 0.2),
            p + "self_attn.indexer.q_norm.weight": ((S.index_dim,), None),
            p + "self_attn.indexer.k_norm.weight": ((S.index_dim,), None),
            p + "self_attn.indexer.v_proj.weight": ((S.index_dim, d), 0.2),
            p + "self_attn.indexer.o_proj.weight": ((d, S.kv_heads * S.index_dim), added),
            p + "post_attention_layernorm.weight": ((d,), None),
            p + "mlp.gate_proj.weight": ((S.hidden_dim, d), 0.2),
            p + "mlp.up_proj.weight": ((S.hidden_dim, d), 0.2),
            p + "mlp.down_proj.weight": ((d, S.hidden_dim), added),
        }
    return shapes | {"norm.weight": ((d,), None), "lm_head.weight": ((S.vocabulary, d), 0.2)}


def used(name, arm):
    if "sinks" in name:
        return arm["sink"]
    if "indexer" not in name:
        return True
    if arm["attention"] != "msa":
        return False
    return arm["value_head"] or ("v_proj" not in name and "o_proj" not in name)


def norm(x, weight):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def rope(x, rotary):
    """x [n, H, d] of one sequence: channel c turns with channel c + rotary / 2."""
    half = rotary // 2
    frequencies = S.rope_theta ** (-2 * torch.arange(half, dtype=torch.float64) / rotary)
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * frequencies
    cosine, sine = angles.cos()[:, None], angles.sin()[:, None]
    low, high, rest = x[..., :half], x[..., half:rotary], x[..., rotary:]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine, rest], -1)


def select(logits):
    """index logits [Hkv, n, n] -> the selected support [Hkv, n, n]."""
    n = logits.shape[-1]
    causal = torch.ones(n, n, dtype=torch.bool).tril()
    blocks = math.ceil(n / S.block_size)
    padded = torch.full((S.kv_heads, n, blocks * S.block_size), -math.inf, dtype=torch.float64)
    padded[:, :, :n] = logits.detach().masked_fill(~causal, -math.inf)
    scores = padded.reshape(S.kv_heads, n, blocks, S.block_size).amax(-1)
    scores[:, torch.arange(n), torch.arange(n) // S.block_size] = math.inf
    top, ids = scores.topk(min(S.top_k, blocks), dim=-1)
    chosen = torch.zeros(S.kv_heads, n, blocks + 1, dtype=torch.bool)
    chosen.scatter_(-1, ids.masked_fill(top == -math.inf, blocks), True)
    return chosen[..., :-1].repeat_interleave(S.block_size, -1)[..., :n] & causal


def window(n):
    """The first block, and the newest tokens up to the query: k Bk in all."""
    i, j = torch.arange(n)[:, None], torch.arange(n)
    newest = i - j < (S.top_k - 1) * S.block_size
    few = i < S.top_k * S.block_size  # all its tokens are within the budget
    return (j <= i) & (few | newest | (j < S.block_size))


def attend(q, k, v, support, sinks=None):
    """q [n, H, d], k, v [n, H, d], support [H, n, n]; returns out and the probabilities."""
    logits = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(q.shape[-1])
    logits = logits.masked_fill(~support, -math.inf)
    if sinks is not None:
        sink = sinks[:, None, None].expand(-1, logits.shape[1], 1)
        weights = torch.cat([logits, sink], -1).softmax(-1)[..., :-1]
    else:
        weights = logits.softmax(-1)
    return torch.einsum("hij,jhd->ihd", weights, v), weights


def attention(h, w, arm, sparse):
    """One sequence: what is added to the residual stream, and the sum of its rows' KL."""
    n, group = len(h), S.query_heads // S.kv_heads

    def heads(name, count, dim, of):
        return (of @ w[f"{name}.weight"].T).reshape(n, count, dim)

    q = rope(norm(heads("q_proj", S.query_heads, S.head_dim, h), w["q_norm.weight"]), S.rotary_dim)
    k = rope(norm(heads("k_proj", S.kv_heads, S.head_dim, h), w["k_norm.weight"]), S.rotary_dim)
    v = heads("v_proj", S.kv_heads, S.head_dim, h)
    causal = torch.ones(n, n, dtype=torch.bool).tril().expand(S.kv_heads, n, n)
    support = causal
    if arm["attention"] == "window":
        support = window(n).expand(S.kv_heads, n, n)
    if arm["attention"] == "msa":
        seen = h.detach() if arm["detach"] else h
        index_q = heads("indexer.q_proj", S.kv_heads, S.index_dim, seen)
        index_k = heads("indexer.k_proj", 1, S.index_dim, seen)
        index_q = rope(norm(index_q, w["indexer.q_norm.weight"]), S.index_rotary)
        index_k = rope(norm(index_k, w["indexer.k_norm.weight"]), S.index_rotary)
        index = torch.einsum("ird,jd->rij", index_q, index_k[:, 0]) / math.sqrt(S.index_dim)
        if sparse:
            support = select(index)
    wide = support.repeat_interleave(group, 0)
    many = (k.repeat_interleave(group, 1), v.repeat_interleave(group, 1))
    sinks = w["sinks"] if arm["sink"] else None
    out, weights = attend(q, *many, wide, sinks)
    added = out.reshape(n, -1) @ w["o_proj.weight"].T
    kl = torch.zeros((), dtype=torch.float64)
    if arm["attention"] == "msa" and arm["value_head"]:
        index_v = heads("indexer.v_proj", 1, S.index_dim, h).expand(-1, S.kv_heads, -1)
        index_out, _ = attend(index_q, index_k.expand(-1, S.kv_heads, -1), index_v, support)
        added = added + index_out.reshape(n, -1) @ w["indexer.o_proj.weight"].T
    if arm["attention"] == "msa" and arm["kl"]:
        kl_support = causal if arm["kl_full_support"] else support
        if kl_support is not support:
            _, weights = attend(q, *many, kl_support.repeat_interleave(group, 0), sinks)
        teacher = weights.detach().reshape(S.kv_heads, group, n, n).mean(1)
        teacher = teacher / teacher.sum(-1, keepdim=True)
        student = index.masked_fill(~kl_support, -math.inf).log_softmax(-1)
        terms = torch.where(kl_support, teacher * (teacher.clamp_min(1e-300).log()
                                                   - student.masked_fill(~kl_support, 0)), 0)
        kl = terms.sum()
    return added, kl


def loss_of(values, tokens, arm, sparse):
    """(mean loss of the tokens with a next one, [layers] mean KL)."""
    lm, count, kls = 0, 0, [0] * S.layers
    for begin, end in zip(CU[:-1], CU[1:]):
        own = tokens[begin:end]
        x = values["embed_tokens.weight"][own]
        for n in range(S.layers):
            p = f"layers.{n}."
            w = {name[len(p + "self_attn."):]: value for name, value in values.items()
                 if name.startswith(p + "self_attn.")}
            added, kl = attention(norm(x, values[p + "input_layernorm.weight"]), w, arm, sparse)
            kls[n] = kls[n] + kl / (CU[-1] * S.kv_heads)
            x = x + added
            h = norm(x, values[p + "post_attention_layernorm.weight"])
            inner = torch.nn.functional.silu(h @ values[p + "mlp.gate_proj.weight"].T)
            inner = inner * (h @ values[p + "mlp.up_proj.weight"].T)
            x = x + inner @ values[p + "mlp.down_proj.weight"].T
        logits = norm(x, values["norm.weight"]) @ values["lm_head.weight"].T
        lm = lm + torch.nn.functional.cross_entropy(logits[:-1], own[1:], reduction="sum")
        count += len(own) - 1
    return lm / count, torch.stack([torch.as_tensor(k, dtype=torch.float64) for k in kls])


def write_or_link(group, name, value, written):
    """Links `name` to the dataset of the same bits that another arm has written, if there is one."""
    key = name, value.tobytes()
    if key in written:
        group[name] = written[key]
    else:
        group.create_dataset(name, data=value)
        written[key] = group[name]


def train(arm, start, tokens, group, written):
    values = {name: torch.nn.Parameter(torch.from_numpy(value).double())
              for name, value in start.items() if used(name, arm)}
    decays = [p for p in values.values() if p.ndim == 2]
    others = [p for p in values.values() if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": decays, "weight_decay": DECAY},
                                   {"params": others, "weight_decay": 0}], lr=RATE,
                                  betas=(0.9, 0.95))
    losses, kls, norms = [], [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        lm, kl = loss_of(values, torch.from_numpy(tokens[step]).long(), arm, step >= arm["warmup"])
        (lm + arm["kl_weight"] * kl.sum()).backward()
        if step == 0:
            for name, value in values.items():
                write_or_link(group, name, value.grad.float().numpy(), written)
        norms.append(torch.nn.utils.clip_grad_norm_(values.values(), CLIP).item())
        losses.append(lm.item())
        kls.append(kl.detach().numpy())
        optimizer.step()
    group["losses"], group["norms"] = np.array(losses), np.array(norms)
    group["kl"] = np.stack(kls)


def main(path):
    generator = np.random.default_rng(SEED)
    start = {}
    for name, (shape, deviation) in parameters().items():
        drawn = generator.standard_normal(shape)
        start[name] = (1 + 0.1 * drawn if deviation is None else deviation * drawn
                       ).astype(np.float32)
    tokens = generator.integers(0, S.vocabulary, (STEPS, CU[-1])).astype(np.int32)
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file.attrs["made_by"] = f"make_train.py, PyTorch {torch.__version__.split('+')[0]}"
        file["cu_seqlens"], file["tokens"] = np.array(CU, np.int64), tokens
        for name, value in start.items():
            file["start/" + name] = value
        configs, written = {}, {}
        for name, change in ARMS.items():
            arm = PLAIN | change
            group = file.create_group("arms/" + name)
            config = SIZES | arm | {"rate": RATE, "clip": CLIP, "decay": DECAY}
            configs[name] = config
            train(arm, start, tokens, group, written)
            print(name, group["losses"][0], group["losses"][-1], group["kl"][-1])
        file.attrs["config"] = json.dumps(configs)


if __name__ == "__main__":
    main(sys.argv[1])
