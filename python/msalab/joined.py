# SPDX-License-Identifier: MIT
"""One product for the queries, keys and values of an attention module and for its Index Branch, where a model is served:
of one token, a product takes as long as its weights are read, and small ones are read slowly."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

NAMES = ("q_proj", "k_proj", "v_proj")


def plain(module) -> list[nn.Linear]:
    """The projections of the module that can be joined: those of PyTorch itself, of one type on one device; none where
    one is wrapped, quantised, divided over devices or replaced."""
    found = [getattr(module, name, None) for name in NAMES]
    if not all(type(one) is nn.Linear and type(one.weight.data) is Tensor and isinstance(
            one.__dict__.get("forward", _Part()), _Part) for one in found):
        return []
    kinds = {(one.weight.dtype, one.weight.device, one.in_features, one.bias is None) for one in found}
    return found if len(kinds) == 1 and not found[0].weight.is_meta else []


class _Part:
    """In place of a projection's forward: takes its part of the product that the module's input was given to."""

    def __init__(self, of: nn.Linear | None = None, joined: Joined | None = None, at: int = 0):
        self.of, self.joined, self.at = of, joined, at

    def __call__(self, x: Tensor) -> Tensor:
        joined = self.joined
        if joined.made is not None and joined.x is x:
            return joined.made[self.at]
        return linear(x, self.of.weight, self.of.bias)


@dataclass
class Joined:
    """The weights, of which those of the projections are parts from now on, so that nothing is held twice but the
    Index Branch's. made: of the module's call under way, the parts of the product of its input x."""

    weight: Tensor
    bias: Tensor | None
    sizes: list[int]
    has_index: bool
    linears: list
    places: tuple = ()  # where their weights and biases lie
    x: Tensor | None = None
    made: tuple | None = field(default=None, repr=False)

    @classmethod
    @torch.no_grad()
    def of(cls, module, branch, old: Joined | None) -> Joined | None:
        """Of the module and its Index Branch, or None; `old` where that is still so."""
        linears = plain(module)
        if not linears:
            return None
        if old is not None and old.places == _places(linears):
            return old
        weights = [one.weight for one in linears]
        index = None if branch is None else branch.joined(weights[0].dtype)[0]
        has_index = index is not None and (index.is_cuda or index.dtype == torch.float32)
        parts = [*weights, *([index] if has_index else [])]
        bias = None if linears[0].bias is None else torch.cat([one.bias for one in linears] + (
            [weights[0].new_zeros(len(index))] if has_index else []))
        made = cls(torch.cat(parts), bias, [len(one) for one in parts], has_index, linears)
        for of_all, name in ((made.weight, "weight"), (made.bias, "bias")):
            for one, part in zip(linears, () if of_all is None else of_all.split(made.sizes)):
                getattr(one, name).data = part
        made.places = _places(linears)
        for at, one in enumerate(linears):
            one.forward = _Part(one, made, at)
        return made

    def begin(self, x: Tensor):
        """Does nothing where the weights lie elsewhere by now, as far as an eager call sees."""
        if torch.compiler.is_compiling() or self.places == _places(self.linears):
            self.x, self.made = x, linear(x, self.weight, self.bias).split(self.sizes, -1)

    def end(self) -> Tensor | None:
        """What the Index Branch makes of the input, where it is part of the product."""
        made, self.x, self.made = self.made, None, None
        return made[-1] if made is not None and self.has_index else None


def _places(linears) -> tuple:
    return tuple((tensor.data_ptr(), tensor.dtype) for one in linears for tensor in (one.weight, one.bias)
                 if tensor is not None)
