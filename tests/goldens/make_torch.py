#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes torch.h5: attention and KL losses with their gradients by PyTorch autograd, in float64.

Inputs are random float32; nothing here shares code with msalab. Needs torch, numpy, h5py.
usage: make_torch.py OUTPUT.h5
"""

import math
import sys

import golden_file
import torch

N, HQ, HKV, DH, DIDX, BK, K, SEED = 96, 8, 2, 32, 16, 16, 3, 20260101


def main(path: str) -> None:
    draw = golden_file.source_of_draws(SEED)
    inputs = {
        "q": draw(N, HQ, DH),
        "k": draw(N, HKV, DH),
        "v": draw(N, HKV, DH),
        "index_q": draw(N, HKV, DIDX),
        "index_k": draw(N, DIDX),
        "d_out": draw(N, HQ, DH),
    }
    t = {name: value.double().requires_grad_(name != "d_out") for name, value in inputs.items()}

    causal = torch.ones(N, N, dtype=torch.bool).tril()
    logits = torch.einsum("ihd,jhd->hij", t["q"], t["k"].repeat_interleave(HQ // HKV, 1))
    logits = logits / math.sqrt(DH)
    index_logits = torch.einsum("ird,jd->rij", t["index_q"], t["index_k"]) / math.sqrt(DIDX)

    # The selected support: the local block and the K - 1 others of highest maximum.
    padded = torch.full((HKV, N, math.ceil(N / BK) * BK), -math.inf, dtype=torch.float64)
    padded[:, :, :N] = index_logits.detach().masked_fill(~causal, -math.inf)
    scores = padded.reshape(HKV, N, -1, BK).amax(-1)
    local = torch.arange(N) // BK
    scores[:, torch.arange(N), local] = math.inf
    top, ids = scores.topk(min(K, scores.shape[-1]), dim=-1)
    ids = ids.masked_fill(top == -math.inf, scores.shape[-1]).sort(-1).values
    chosen = torch.zeros(HKV, N, scores.shape[-1] + 1, dtype=torch.bool).scatter_(-1, ids, True)
    selected = chosen[:, :, :-1].repeat_interleave(BK, -1)[:, :, :N] & causal
    ids = ids.masked_fill(ids == scores.shape[-1], -1).permute(1, 0, 2).to(torch.int32)

    outputs = {"ids": ids}

    def kl(support, name):
        masked = logits.detach().masked_fill(~support.repeat_interleave(HQ // HKV, 0), -math.inf)
        teacher = masked.softmax(-1).reshape(HKV, HQ // HKV, N, N).mean(1)
        log_index = index_logits.masked_fill(~support, -math.inf).log_softmax(-1)
        rows = torch.nn.functional.kl_div(
            log_index.masked_fill(~support, 0), teacher.masked_fill(~support, 0), reduction="none"
        ).sum(-1)
        gradient = torch.autograd.grad(rows.mean(), (t["index_q"], t["index_k"]), retain_graph=True)
        outputs[f"{name}/kl"] = rows.detach().T
        of_support = index_logits.masked_fill(~support, -math.inf)
        outputs[f"{name}/index_lse"] = of_support.logsumexp(-1).detach().T
        outputs[f"{name}/d_index_q"], outputs[f"{name}/d_index_k"] = gradient

    kl(causal.expand(HKV, N, N), "index_kl_full")
    kl(selected, "index_kl_selected")

    def attention(support, name):
        masked = logits.masked_fill(~support.repeat_interleave(HQ // HKV, 0), -math.inf)
        out = torch.einsum("hij,jhd->ihd", masked.softmax(-1),
                           t["v"].repeat_interleave(HQ // HKV, 1))
        gradient = torch.autograd.grad(
            (out * t["d_out"]).sum(), (t["q"], t["k"], t["v"]), retain_graph=True
        )
        outputs[f"{name}/out"] = out
        outputs[f"{name}/lse"] = masked.logsumexp(-1).detach().T
        for operand, value in zip("qkv", gradient):
            outputs[f"{name}/d_{operand}"] = value

    attention(causal.expand(HKV, N, N), "dense_attention")
    attention(selected, "sparse_attention")

    config = {"tokens": N, "query_heads": HQ, "kv_heads": HKV, "head_dim": DH, "index_dim": DIDX,
              "block_size": BK, "top_k": K, "seed": SEED}
    golden_file.write(path, config, inputs, outputs)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
