#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes gate.h5: the gate of SeerAttention-R from queries and keys before RoPE to its KL loss, and
the gradient of its weights by PyTorch autograd, in float64.

Inputs are random float32; nothing here shares code with msalab. Needs torch, numpy, h5py.
usage: make_gate.py OUTPUT.h5
"""

import math
import sys

import golden_file
import torch
import torch.nn.functional as F

N, BK, HQ, HKV, DH, DG, ROTARY, THETA, EPSILON, SEED = 60, 8, 4, 2, 16, 16, 8, 1e4, 1e-6, 20260301
G, BLOCKS = HQ // HKV, math.ceil(N / BK)


def rope(heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return golden_file.rope(heads, positions, ROTARY, THETA)


def normed(heads, weight):
    return golden_file.rms_normed(heads, weight, EPSILON)


def pooled(k: torch.Tensor) -> torch.Tensor:
    blocks = [k[b * BK:(b + 1) * BK] for b in range(BLOCKS)]
    return torch.stack([torch.cat([b.amax(0), b.amin(0), b.mean(0)], -1) for b in blocks])


def main(path: str) -> None:
    draw = golden_file.source_of_draws(SEED)
    inputs = {
        "q": 1.5 * draw(N, HQ, DH), "k": draw(N, HKV, DH),
        "w_gate_q": draw(HKV * DG, G * DH) / 4, "w_gate_k": draw(HKV * DG, 3 * DH) / 4,
        "gate_q_norm": 1 + draw(DG) / 4, "gate_k_norm": 1 + draw(DG) / 4,
    }
    t = {name: value.double() for name, value in inputs.items()}
    names = ("w_gate_q", "w_gate_k", "gate_q_norm", "gate_k_norm")
    weights = [t[name].requires_grad_() for name in names]
    positions = torch.arange(N)

    q, k = rope(t["q"], positions), rope(t["k"], positions).repeat_interleave(G, 1)
    causal = torch.ones(N, N, dtype=torch.bool).tril()
    logits = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(DH)
    attention = logits.masked_fill(~causal, -math.inf).softmax(-1)
    attention = F.pad(attention, (0, BLOCKS * BK - N)).reshape(HKV, G, N, BLOCKS, BK)
    before = torch.arange(BLOCKS)[None] < (positions // BK)[:, None]  # the query's own block is not
    teachers = {"max": attention.amax((1, 4)) * before, "mean": attention.sum(4).mean(1) * before}

    def loss_of(with_norms, teacher):
        gate_q = torch.einsum("irx,rox->iro", t["q"].reshape(N, HKV, G * DH),
                              weights[0].reshape(HKV, DG, G * DH))
        gate_k = torch.einsum("brx,rox->bro", pooled(t["k"]), weights[1].reshape(HKV, DG, 3 * DH))
        if with_norms:
            gate_q, gate_k = normed(gate_q, weights[2]), normed(gate_k, weights[3])
        gate_q, gate_k = rope(gate_q, positions), rope(gate_k, torch.arange(0, N, BK))
        scores = torch.einsum("ird,brd->rib", gate_q, gate_k) / math.sqrt(DG)
        rows = slice(BK, N)  # the first block's queries have nothing to judge: their KL is 0
        target = teachers[teacher][:, rows] / teachers[teacher][:, rows].sum(-1, keepdim=True)
        log_gate = scores[:, rows].masked_fill(~before[rows], -math.inf).log_softmax(-1)
        log_gate = log_gate.masked_fill(~before[rows], 0)
        kl = F.kl_div(log_gate, target, reduction="none").sum() / (HKV * N)
        return kl, gate_q, gate_k

    outputs = {f"teacher/{name}": value.transpose(0, 1) for name, value in teachers.items()}
    for name, with_norms, teacher in (("plain", False, "max"), ("normed", True, "max"),
                                      ("mean", False, "mean")):
        used = weights if with_norms else weights[:2]
        kl, gate_q, gate_k = loss_of(with_norms, teacher)
        outputs[f"{name}/kl"] = kl.detach().reshape(1)
        if teacher == "max":  # the gate does not depend on the teacher
            outputs[f"{name}/gate_q"], outputs[f"{name}/gate_k"] = gate_q, gate_k
        for weight, gradient in zip(names, torch.autograd.grad(kl, used)):
            outputs[f"{name}/d_{weight}"] = gradient

    config = {"tokens": N, "block_size": BK, "query_heads": HQ, "kv_heads": HKV, "head_dim": DH,
              "gate_dim": DG, "rotary_dim": ROTARY, "rope_theta": THETA, "seed": SEED}
    golden_file.write(path, config, inputs, outputs)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
