# SPDX-License-Identifier: MIT
"""One product for the queries, keys and values of a layer and for its Index Branch, while it is trained."""

import torch
from torch import Tensor

from ..joined import NAMES


def joined_product(module, x: Tensor, detach: bool) -> tuple[Tensor, ...]:
    """Queries, keys and values of x [N, d] by the module's projections, and what its Index Branch's make of x. detach:
    the latter have no gradient of x."""
    weights = [getattr(module, name).weight for name in NAMES]
    index = [module.indexer.q_proj.weight, module.indexer.k_proj.weight]
    sizes = [*map(len, weights), sum(map(len, index))]
    made = _Product.apply(x, torch.cat([*weights, *index]), sum(sizes[:3]) if detach else sum(sizes))
    return made.split(sizes, -1)


class _Product(torch.autograd.Function):
    """made [N, rows] of x [N, d] and weight [rows, d], of which the first `passing` rows have a gradient of x."""

    @staticmethod
    def forward(ctx, x, weight, passing):
        ctx.passing = passing
        ctx.save_for_backward(x, weight)
        return torch.nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx, d_made):
        x, weight = ctx.saved_tensors
        d_x = d_made[:, :ctx.passing] @ weight[:ctx.passing]
        return d_x, d_made.t() @ x, None
