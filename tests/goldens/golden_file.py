# SPDX-License-Identifier: MIT
"""What the scripts that write goldens with PyTorch have in common: inputs, RoPE and norm of a small
indexer, and the file."""

import json

import h5py
import torch


def source_of_draws(seed: int):
    """A function of a shape: float32 from the normal distribution, by one generator."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator, dtype=torch.float32)


def rope(heads: torch.Tensor, positions: torch.Tensor, rotary: int, theta: float) -> torch.Tensor:
    """heads [N, heads, channels] at positions [N]: the first `rotary` channels turned, halves paired."""
    half = rotary // 2
    angle = positions[:, None] * theta ** (-2.0 * torch.arange(half, dtype=torch.float64) / rotary)
    cosine, sine = angle.cos()[:, None], angle.sin()[:, None]
    low, high, rest = heads[..., :half], heads[..., half:rotary], heads[..., rotary:]
    return torch.cat([low * cosine - high * sine, high * cosine + low * sine, rest], -1)


def rms_normed(heads: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
    return heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def write(path: str, config: dict, inputs: dict, expected: dict) -> None:
    """inputs/* and expected/* in float32, losses (*/kl) in float64, whole numbers as they are."""
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file.attrs["source"] = f"PyTorch {torch.__version__.split('+')[0]}, float64, autograd"
        file.attrs["config"] = json.dumps(config)
        for group, tensors in (("inputs", inputs), ("expected", expected)):
            for name, value in tensors.items():
                value = value.detach()
                if value.is_floating_point() and not name.endswith("/kl"):
                    value = value.float()
                file.create_dataset(f"{group}/{name}", data=value.numpy(), compression=9,
                                    shuffle=True, chunks=tuple(value.shape))
