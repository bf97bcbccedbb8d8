# SPDX-License-Identifier: MIT
"""A model, dense and with MSA at every setting, run on the same tokens."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from .. import transformers as msa
from ..operations import InputError
from ..selectors import Rule

POSITIONS_AT_ONCE = 256  # whose logits are looked at in double precision


@dataclass(frozen=True)
class Setting:
    """A selector at a budget, tokens that a query reads."""

    selector: str
    rule: Rule

    @property
    def budget(self) -> int:
        return self.rule.block_size * self.rule.top_k

    @property
    def name(self) -> str:
        return f"{self.selector}@{self.budget}"


@dataclass(frozen=True)
class Scores:
    """Of one sequence of n tokens under C settings, dense first, and L layers."""

    nats: np.ndarray  # float64 [C, n - 1]: -log probability of each token but the first
    right: np.ndarray  # bool [C, n - 1]: it is the likeliest one
    layer_error: np.ndarray  # float64 [C - 1, L]: |h - h_dense| / |h_dense| behind each layer


class Scorer:
    """InputError where a setting does not fit the model."""

    def __init__(self, model, settings: list[Setting], indexer, dense_layers):
        msa.register()
        self.model = model.eval()
        self._own = model.config._attn_implementation
        self.plans = [msa.plan(model, None if s.selector == "index" else s.selector,
                               indexer if s.selector == "index" else None, dense_layers, None,
                               s.rule) for s in settings]
        modules, _ = msa.attention_modules(model)
        self.layers = sorted(modules)
        names = {module: name for name, module in model.named_modules()}
        self._blocks = [model.get_submodule(names[modules[number]].rpartition(".")[0])
                        for number in self.layers]
        embedding = model.get_input_embeddings().weight
        self._device, self._vocabulary = embedding.device, len(embedding)

    @torch.no_grad()
    def __call__(self, ids: np.ndarray) -> Scores:
        if not 0 <= ids.min() <= ids.max() < self._vocabulary:
            raise InputError(f"token ids from {ids.min()} to {ids.max()}; the vocabulary of the "
                             f"model is 0 to {self._vocabulary - 1}")
        tokens = torch.as_tensor(ids, device=self._device)[None]
        dense: list[torch.Tensor] = []
        with self._behind_layers(lambda number, hidden: dense.append(hidden)):
            found = [self._score(tokens)]
        errors = np.full((len(self.plans), len(self.layers)), np.nan)
        self.model.set_attn_implementation(msa.NAME)
        try:
            for row, plan in enumerate(self.plans):
                plan.apply()

                def compare(number, hidden, row=row):
                    own = dense[number].float()
                    norm = own.norm().item()
                    difference = (hidden.float() - own).norm().item()
                    errors[row, number] = difference / norm if norm else np.nan

                with self._behind_layers(compare):
                    found.append(self._score(tokens))
        finally:
            self.model.set_attn_implementation(self._own)
        return Scores(*(np.stack(values) for values in zip(*found)), errors)

    def _score(self, tokens):
        logits = self.model(input_ids=tokens, use_cache=False).logits[0, :-1]
        targets, nats, right = tokens[0, 1:], [], []
        for begin in range(0, len(logits), POSITIONS_AT_ONCE):
            some = logits[begin:begin + POSITIONS_AT_ONCE].double()
            told = targets[begin:begin + POSITIONS_AT_ONCE]
            nats.append(torch.nn.functional.cross_entropy(some, told, reduction="none"))
            right.append(some.argmax(-1) == told)
        return torch.cat(nats).cpu().numpy(), torch.cat(right).cpu().numpy()

    @contextmanager
    def _behind_layers(self, tell):
        with ExitStack() as stack:
            for place, block in enumerate(self._blocks):
                def hook(_, __, output, place=place):
                    tell(place, (output[0] if isinstance(output, tuple) else output)[0])

                stack.callback(block.register_forward_hook(hook).remove)
            yield
