# SPDX-License-Identifier: MIT
"""Which RoPE a layer of a transformers model has, found by what the model does.

Rotary embedding modules, which hold the frequencies as a buffer, return cosine and sine for the
positions of a sequence; attention modules get them as arguments, or call such a module themselves.
"""

from __future__ import annotations

import json
import weakref
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from .layer import Layer

BUFFER = "inv_freq"  # ends the names of buffers of frequencies
PLAIN_TOLERANCE = 2.0 ** -20  # relative; frequencies are computed in float32, by pow and division
ANGLE_TOLERANCE = 2.0 ** -12  # of the largest pair: cosine and sine may be of a type of 16 bits
DEFAULT_THETA = 1e4  # where a model names none
SEED = 1


@dataclass
class Embedding:
    """What cosine and sine were made of."""

    inv_freq: np.ndarray  # float32 [rotary_dim/2]
    factor: float  # by which they are multiplied
    cosine: weakref.ref  # the first tensor returned, as long as the model holds it


class RotaryObserver:
    """While observed, knows what the rotary embedding modules of a model return."""

    def __init__(self, model: torch.nn.Module):
        self._modules = [module for module in model.modules() if any(
            name.endswith(BUFFER) for name, _ in module.named_buffers(recurse=False))]
        self._embeddings: list[Embedding] = []

    @contextmanager
    def observed(self):
        with ExitStack() as stack:
            for module in self._modules:
                hook = module.register_forward_hook(self._keep, with_kwargs=True)
                stack.callback(hook.remove)
            stack.callback(self._embeddings.clear)
            yield self

    def _keep(self, module, args, kwargs, output):
        layer_type = next((f"{text}_" for text in (*args, *kwargs.values())
                           if isinstance(text, str)), "")  # the module has frequencies for each
        inv_freq = getattr(module, f"{layer_type}{BUFFER}").detach().float().cpu().numpy().copy()
        factor = getattr(module, f"{layer_type}attention_scaling", 1.0)
        self._embeddings.append(Embedding(inv_freq, float(factor),
                                          weakref.ref(next(_tensors_of(output)))))

    def newest(self) -> Embedding | None:
        """Of a module that attention called itself."""
        return self._embeddings[-1] if self._embeddings else None

    def among(self, arguments) -> Embedding | None:
        """The newest one that is among the arguments of a module."""
        leaves = list(_tensors_of(arguments))
        for same in (lambda a, b: a is b, _equal):  # equal: moved to another device
            for embedding in reversed(self._embeddings):
                cosine = embedding.cosine()
                if cosine is not None and any(same(leaf, cosine) for leaf in leaves):
                    return embedding
        return None


def _tensors_of(value):
    """Those in nested lists, tuples and dictionaries."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors_of(one)


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.shape, a.dtype) == (b.shape, b.dtype) and torch.equal(a.to(b.device), b)


def at_position_zero(kwargs: dict) -> dict:
    """The arguments of an attention module, by which all tokens stand at position 0, where RoPE
    turns nothing."""
    def first(values):  # [..., S, channels]
        if isinstance(values, dict):
            return {name: first(one) for name, one in values.items()}
        if isinstance(values, (list, tuple)):
            return type(values)(map(first, values))
        return values[..., :1, :].expand_as(values) if isinstance(values, torch.Tensor) else values

    changed = dict(kwargs)
    for name in ("position_ids", "cache_position"):
        if isinstance(changed.get(name), torch.Tensor):
            changed[name] = torch.zeros_like(changed[name])
    if "position_embeddings" in changed:
        changed["position_embeddings"] = first(changed["position_embeddings"])
    return changed


def random_like(values: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED)
    return torch.randn(values.shape, generator=generator).to(values.device, values.dtype)


@dataclass
class Turned:
    """What RoPE does to queries and keys of a layer, of random hidden states."""

    channels: int  # up to the last one that it turns, 0 where there is none
    here: np.ndarray  # float32 [heads, dh], queries of a token where it is,
    at_zero: np.ndarray  # and at position 0

    def layout(self, rotary_dim: int) -> str | None:
        """Of Layer.rope_layout: which pairs of channels keep their length."""
        def change(layout):
            here, at_zero = self._pairs(rotary_dim, layout)
            return np.abs(np.abs(here) - np.abs(at_zero)).sum()

        return "interleaved" if change("interleaved") < change(None) else None

    def is_plain(self, rotary_dim: int, layout: str | None, theta: float) -> bool:
        """Do these channels turn as plain RoPE's do at position 1?"""
        here, at_zero = self._pairs(rotary_dim, layout)
        half = rotary_dim // 2
        plain = at_zero * np.exp(1j * theta ** (-np.arange(half) / half))
        return np.allclose(here, plain, rtol=0, atol=ANGLE_TOLERANCE * np.abs(at_zero).max())

    def _pairs(self, rotary_dim: int, layout: str | None):
        """Pairs of channels as complex numbers, here and at position 0."""
        for heads in (self.here, self.at_zero):
            heads = heads[:, :rotary_dim].astype(np.float64)
            one, other = ((heads[:, ::2], heads[:, 1::2]) if layout == "interleaved" else
                          np.split(heads, 2, axis=1))
            yield one + 1j * other


def describe(layer: Layer, embedding: Embedding | None, parameters: dict, turned: Turned):
    """Writes into a layer which RoPE it has; `parameters`: of the model's configuration."""
    if turned.channels == 0:
        layer.q_state = layer.k_state = "none"
        layer.rotary_dim = 0
        return
    theta = parameters.get("rope_theta")
    if embedding is None:  # as GPT-J, whose frequencies are no buffer; else of a kind unknown here
        layout, theta = turned.layout(turned.channels // 2 * 2), float(theta or DEFAULT_THETA)
        if turned.channels % 2 == 0 and turned.is_plain(turned.channels, layout, theta):
            layer.rotary_dim, layer.rope_layout, layer.rope_theta = turned.channels, layout, theta
        return
    if turned.channels > 2 * len(embedding.inv_freq):
        return  # not of the first channels
    half = len(embedding.inv_freq)
    layer.rotary_dim = 2 * half
    layer.rope_layout = turned.layout(layer.rotary_dim)
    if parameters.get("rope_type") == "default" and theta and embedding.factor == 1:
        plain = float(theta) ** (-np.arange(half) / half)
        if np.allclose(embedding.inv_freq, plain, rtol=PLAIN_TOLERANCE, atol=0):
            layer.rope_theta = float(theta)
            return
    layer.rope_scaling = json.dumps(parameters)
    layer.rope_inv_freq, layer.rope_attention_factor = embedding.inv_freq, embedding.factor
