# SPDX-License-Identifier: MIT
"""One product for the queries, keys and values of a layer and for its Index Branch, while it is trained."""

import torch
from torch import Tensor, nn

from ..joined import NAMES


class Part(nn.Linear):
    """A projection that takes its part of joined_product(), once, where that was made of its input. A class in place of
    nn.Linear, since layers share the graphs of torch.compile, for which a function of each would be another one."""

    made: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        made, self.made = self.made, None
        return super().forward(x) if made is None else made


def joined_product(module, x: Tensor, detach: bool) -> Tensor:
    """What the projections of the module's Index Branch make of x [N, d]. Its own projections, which are Parts, have
    their parts of the same product. detach: the former have no gradient of x."""
    parts = [getattr(module, name) for name in NAMES]
    weights = [one.weight for one in (*parts, module.indexer.q_proj, module.indexer.k_proj)]
    rows = [len(one) for one in weights]
    made = _Product.apply(x, torch.cat(weights), sum(rows[:3]) if detach else sum(rows))
    *own, index = made.split([*rows[:3], sum(rows[3:])], -1)
    for one, part in zip(parts, own):
        one.made = part[None]
    return index


class _Product(torch.autograd.Function):
    """made [N, rows] of x [N, d] and weight [rows, d], of which the first `passing` rows have a gradient of x."""

    @staticmethod
    def forward(ctx, x, weight, passing):
        ctx.passing = passing
        ctx.save_for_backward(x, weight)
        return nn.functional.linear(x, weight)

    @staticmethod
    def backward(ctx, d_made):
        x, weight = ctx.saved_tensors
        return d_made[:, :ctx.passing] @ weight[:ctx.passing], d_made.t() @ x, None
