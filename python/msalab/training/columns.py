# SPDX-License-Identifier: MIT
"""The tables of `msalab train`. A column that programs have, too, is described as in data/FORMAT.md, by a test."""

from __future__ import annotations

from ..report import Shape
from ..results import Column

# Name in curves.csv -> unit, definition, why there may be none.
AVERAGED = {
    "loss": ("nats", "of the next token, per token", ""),
    "kl_loss": ("nats", "KL of an Index Branch, mean over layers", "no Index Branch"),
    "gradient_norm": ("1", "norm of the model's gradient before it is clipped", "the model was not trained"),
    "index_gradient_norm": ("1", "norm of the Index Branches' gradient before it is clipped", "no Index Branch"),
    "tokens_per_second": ("1/s", "tokens of training steps alone", ""),
    "block_recall": ("1", "block recall, mean over layers", "nothing was probed"),
    "score_recall": ("1", "score recall, mean over layers", "nothing was probed"),
    "mass_kept": ("1", "mass kept, mean over layers", "nothing was probed"),
    "entropy_dense": ("nats", "entropy of dense attention, mean over layers", "nothing was probed"),
    "entropy_sparse": ("nats", "entropy of the attention that was run, mean over layers", "nothing was probed")}
LAST_SHARE = 0.1  # of the steps

SHAPES = [Shape("trained", "the model, behind its last step, and means of curves over the last tenth of the steps", 0, {
    "last_step": Column("integer", "", "training steps done in all"),
    "trained_tokens": Column("integer", "tokens", "tokens of all steps"),
    **{f"last_{name}": Column("real", unit, f"mean over the last tenth of the steps: {definition}", null)
       for name, (unit, definition, null) in AVERAGED.items()}})]
