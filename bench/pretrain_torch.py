#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Tokens per second of the dense model of msa-pretrain's presets in PyTorch: autocast to bf16, flash
attention, torch.compile, fused AdamW. Steps of one batch of random bytes; the first ones, which
compile, do not count. The last line printed is the rate.
"""

import argparse

import torch
from timer import step_ms
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

PRESETS = {  # as experiments/pretrain/presets.cpp has them
    "pilot": {"layers": 6, "dim": 384, "hidden": 1024, "context": 4096, "sequences": 8},
    "large": {"layers": 8, "dim": 512, "hidden": 1408, "context": 8192, "sequences": 4},
}
VOCABULARY, HEADS, KV_HEADS, HEAD_DIM, ROTARY, THETA = 256, 16, 4, 64, 32, 1e5


class Attention(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.q = nn.Linear(dim, HEADS * HEAD_DIM, bias=False)
        self.k = nn.Linear(dim, KV_HEADS * HEAD_DIM, bias=False)
        self.v = nn.Linear(dim, KV_HEADS * HEAD_DIM, bias=False)
        self.o = nn.Linear(HEADS * HEAD_DIM, dim, bias=False)
        self.q_norm, self.k_norm = (nn.RMSNorm(HEAD_DIM, eps=1e-6) for _ in range(2))

    def forward(self, x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape

        def heads(projection: nn.Linear, count: int) -> torch.Tensor:
            return projection(x).view(batch, tokens, count, HEAD_DIM)

        def turned(y: torch.Tensor) -> torch.Tensor:
            low, high, rest = y.split([ROTARY // 2, ROTARY // 2, HEAD_DIM - ROTARY], dim=-1)
            cosine, sine = rope[..., 0], rope[..., 1]
            return torch.cat([low * cosine - high * sine, high * cosine + low * sine, rest],
                             dim=-1).to(torch.bfloat16).transpose(1, 2)

        q, k = turned(self.q_norm(heads(self.q, HEADS))), turned(self.k_norm(heads(self.k, KV_HEADS)))
        v = heads(self.v, KV_HEADS).transpose(1, 2)
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(out.transpose(1, 2).reshape(batch, tokens, HEADS * HEAD_DIM))


class Layer(nn.Module):
    def __init__(self, dim: int, hidden: int):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(dim, eps=1e-6) for _ in range(2))
        self.attention = Attention(dim)
        self.gate, self.up = (nn.Linear(dim, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norms[0](x), rope)
        h = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class Model(nn.Module):
    def __init__(self, layers: int, dim: int, hidden: int, context: int):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, dim)
        self.layers = nn.ModuleList(Layer(dim, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, VOCABULARY, bias=False)
        angle = torch.arange(context)[:, None] * THETA ** (-torch.arange(0, ROTARY, 2) / ROTARY)
        self.register_buffer("rope", torch.stack([angle.cos(), angle.sin()], dim=-1)[:, None])

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.rope)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.view(-1, VOCABULARY).float(), targets.view(-1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="pilot")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    sizes = dict(PRESETS[args.preset])
    sequences = sizes.pop("sequences")
    torch.manual_seed(0)
    model = Model(**sizes).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1,
                                  fused=True)
    run = model if args.no_compile else torch.compile(model)
    text = torch.randint(VOCABULARY, (sequences, sizes["context"] + 1), device="cuda")

    def step() -> float:
        with torch.autocast("cuda", dtype=torch.bfloat16), sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            loss = run(text[:, :-1].contiguous(), text[:, 1:].contiguous())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item() + 0 * norm.item()  # both are looked at in every step, as msa-pretrain does

    losses = []
    seconds = 1e-3 * step_ms(lambda: losses.append(step()), "cuda", 2, calls=args.steps)[1]
    parameters = sum(p.numel() for p in model.parameters())
    print(f"{torch.__version__}, {torch.cuda.get_device_name()}, {parameters} parameters, "
          f"loss {losses[0]:.3f} to {losses[-1]:.3f}, {1e3 * seconds:.2f} ms a step")
    print(f"{sequences * sizes['context'] / seconds:.0f}")


if __name__ == "__main__":
    main()
