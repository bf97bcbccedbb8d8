#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Trains a small language model of bytes with MSA in PyTorch.

usage: train_torch.py FILE [--steps 200] [--context 512] [--attention msa|full] [--warmup-steps 20]

needs: pip install . of this repository, and PyTorch. The model is the one that msa-pretrain
trains, with the same names of parameters, and takes the same first steps from the same weights.
"""

import argparse
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional

from msalab.nn import MSAttention, RMSNorm

BYTES = 256


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.gate_proj = nn.Linear(dim, hidden, bias=False)
        self.up_proj = nn.Linear(dim, hidden, bias=False)
        self.down_proj = nn.Linear(hidden, dim, bias=False)

    def forward(self, x):
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, dim, hidden, **attention):
        super().__init__()
        self.input_layernorm = RMSNorm(dim)
        self.self_attn = MSAttention(dim, **attention)
        self.post_attention_layernorm = RMSNorm(dim)
        self.mlp = FeedForward(dim, hidden)

    def forward(self, x, cu_seqlens, sparse):
        y, kl = self.self_attn(self.input_layernorm(x), cu_seqlens, sparse)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), kl


class Model(nn.Module):
    def __init__(self, vocabulary, dim, hidden, layers, **attention):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(Layer(dim, hidden, **attention) for _ in range(layers))
        self.norm = RMSNorm(dim)
        self.lm_head = nn.Linear(dim, vocabulary, bias=False)
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                added = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * layers) if added else 0.02)

    def forward(self, tokens, cu_seqlens, sparse=True):
        """(mean loss of the tokens with a next one in nats, [layers] mean KL)."""
        x, kls = self.embed_tokens(tokens), []
        for layer in self.layers:
            x, kl = layer(x, cu_seqlens, sparse)
            kls.append(kl)
        targets = torch.cat([tokens[1:], tokens[:1]])
        targets[[end - 1 for end in cu_seqlens[1:]]] = -100  # the last token has no next one
        return functional.cross_entropy(self.lm_head(self.norm(x)), targets), torch.stack(kls)


def make_optimizer(model, rate, decay):
    parameters = list(model.parameters())
    return torch.optim.AdamW(
        [{"params": [p for p in parameters if p.ndim == 2], "weight_decay": decay},
         {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0}],
        lr=rate, betas=(0.9, 0.95))


def train_step(model, optimizer, tokens, cu_seqlens, sparse, kl_weight=1.0, clip=1.0):
    """(loss, [layers] KL, norm of the gradient before it is clipped)."""
    optimizer.zero_grad()
    lm, kl = model(tokens, cu_seqlens, sparse)
    (lm + kl_weight * kl.sum()).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return lm.item(), kl.detach(), norm.item()


def rate_at(step, steps, peak=1e-3, warm=20):
    """Linear up to the peak, then a cosine down to a tenth of it."""
    if step < warm:
        return peak * (step + 1) / warm
    return peak * (0.55 + 0.45 * math.cos(math.pi * (step - warm) / max(1, steps - warm)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="text to learn from")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--context", type=int, default=512, help="bytes of a sequence")
    parser.add_argument("--batch", type=int, default=4, help="sequences of a step")
    parser.add_argument("--attention", choices=("msa", "full"), default="msa")
    parser.add_argument("--warmup-steps", type=int, default=20,
                        help="steps in which the indexer learns beside full attention")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    try:
        with open(options.file, "rb") as file:
            text = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    except (OSError, ValueError) as error:
        return f"train_torch.py: {options.file}: {error}"
    if len(text) <= options.context:
        return (f"train_torch.py: {options.file} has {len(text)} bytes, must have more than "
                f"--context = {options.context}")
    torch.manual_seed(options.seed)
    full = options.attention == "full"
    model = Model(BYTES, dim=128, hidden=384, layers=4, query_heads=4, kv_heads=2, head_dim=32,
                  index_dim=32, block_size=32, top_k=4, kl=not full)
    optimizer = make_optimizer(model, rate=1e-3, decay=0.1)
    cu_seqlens = [options.context * n for n in range(options.batch + 1)]
    began = time.time()
    for step in range(options.steps):
        starts = torch.randint(len(text) - options.context, (options.batch,))
        tokens = torch.cat([text[start:start + options.context] for start in starts])
        for group in optimizer.param_groups:
            group["lr"] = rate_at(step, options.steps)
        sparse = not full and step >= options.warmup_steps
        loss, kl, norm = train_step(model, optimizer, tokens, cu_seqlens, sparse)
        if step % 10 == 0 or step == options.steps - 1:
            print(f"step {step:4}  {loss / math.log(2):.3f} bits per byte  "
                  f"KL {kl.mean():.4f}  gradient {norm:.2f}  {time.time() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
