#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes index_branch.h5: an Index Branch from hidden states to its KL loss, the gradient of its
weights by PyTorch autograd, and torch.optim.AdamW's steps, in float64.

Inputs are random float32; nothing here shares code with msalab. Needs torch, numpy, h5py.
usage: make_index_branch.py OUTPUT.h5
"""

import math
import sys

import golden_file
import torch

N, D, HQ, HKV, DH, DIDX, ROTARY, THETA, EPSILON, SEED = 80, 40, 8, 2, 32, 16, 8, 1e4, 1e-6, 20260102
STEPS, RATE, DECAY = 4, 3e-2, 0.1


def head(x, weight, norm, heads):
    out = (x @ weight.T).reshape(N, heads, DIDX)
    if norm is not None:
        out = golden_file.rms_normed(out, norm, EPSILON)
    return golden_file.rope(out, torch.arange(N), ROTARY, THETA)


def main(path: str) -> None:
    draw = golden_file.source_of_draws(SEED)
    inputs = {
        "x": draw(N, D), "q": draw(N, HQ, DH), "k": draw(N, HKV, DH),
        "w_index_q": draw(HKV * DIDX, D) / 4, "w_index_k": draw(DIDX, D) / 4,
        "index_q_norm": 1 + draw(DIDX) / 4, "index_k_norm": 1 + draw(DIDX) / 4,
    }
    t = {name: value.double() for name, value in inputs.items()}
    weights = [t[name].requires_grad_() for name in
               ("w_index_q", "w_index_k", "index_q_norm", "index_k_norm")]
    causal = torch.ones(N, N, dtype=torch.bool).tril()
    logits = torch.einsum("ihd,jhd->hij", t["q"], t["k"].repeat_interleave(HQ // HKV, 1))
    teacher = (logits / math.sqrt(DH)).masked_fill(~causal, -math.inf).softmax(-1)
    teacher = teacher.reshape(HKV, HQ // HKV, N, N).mean(1)

    def loss_of(normed):
        index_q = head(t["x"], weights[0], weights[2] if normed else None, HKV)
        index_k = head(t["x"], weights[1], weights[3] if normed else None, 1)[:, 0]
        scores = torch.einsum("ird,jd->rij", index_q, index_k) / math.sqrt(DIDX)
        log_index = scores.masked_fill(~causal, -math.inf).log_softmax(-1).masked_fill(~causal, 0)
        kl = torch.nn.functional.kl_div(log_index, teacher, reduction="none").sum(-1).mean()
        return kl, index_q, index_k

    outputs = {}
    for name, normed in (("plain", False), ("normed", True)):
        used = weights if normed else weights[:2]
        kl, index_q, index_k = loss_of(normed)
        outputs[f"{name}/kl"] = kl.detach().reshape(1)
        outputs[f"{name}/index_q"], outputs[f"{name}/index_k"] = index_q, index_k
        for weight, gradient in zip(("w_index_q", "w_index_k", "index_q_norm", "index_k_norm"),
                                    torch.autograd.grad(kl, used)):
            outputs[f"{name}/d_{weight}"] = gradient

    # AdamW on w_index_k alone, from given gradients.
    gradients = draw(STEPS, DIDX, D)
    inputs["gradients"] = gradients
    trained = torch.nn.Parameter(t["w_index_k"].detach().clone())
    optimizer = torch.optim.AdamW([trained], lr=RATE, weight_decay=DECAY)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = RATE * (1 + math.cos(math.pi * step / STEPS)) / 2
        trained.grad = gradients[step].double()
        optimizer.step()
    outputs["adamw/w_index_k"] = trained

    config = {"tokens": N, "model_dim": D, "query_heads": HQ, "kv_heads": HKV, "head_dim": DH,
              "index_dim": DIDX, "rotary_dim": ROTARY, "rope_theta": THETA, "steps": STEPS,
              "rate": RATE, "weight_decay": DECAY, "seed": SEED}
    golden_file.write(path, config, inputs, outputs)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
