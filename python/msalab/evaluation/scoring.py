# SPDX-License-Identifier: MIT
"""A model, dense and with MSA at every setting, run on the same tokens."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import torch

from .. import indexer as indexers
from .. import transformers as msa
from ..capture.decoder import decoder_of
from ..operations import InputError
from ..selectors import Choice, held_first

POSITIONS_AT_ONCE = 256  # whose logits are in memory


@dataclass(frozen=True)
class Setting:
    """How the layers attend: all by one choice, or by each one's own."""

    name: str
    selector: str
    how: Choice | dict
    dense_layers: tuple = ()
    element: str | None = None  # as configure() takes it

    def rules(self) -> list:
        choices = self.how.values() if isinstance(self.how, dict) else [self.how]
        return [one.rule for one in choices if one is not None]

    @property
    def budget(self) -> int:
        """Tokens that a query reads, of the layer that reads most."""
        return max(rule.tokens for rule in self.rules())

    @property
    def forced_first(self) -> int | None:
        """Oldest blocks that are always kept; None where it is each layer's own."""
        return None if isinstance(self.how, dict) else held_first(self.how.rule, self.how.selector)


@dataclass(frozen=True)
class Scores:
    """Of one sequence of n tokens, P of them foretold, under C settings, dense first, and L layers."""

    nats: np.ndarray  # float32 [C, P]: -log probability of each token
    right: np.ndarray  # bool [C, P]: it is the likeliest one
    # float64 [C - 1, L]: mean over tokens of |h - h_dense| / |h_dense|; NaN without by_layer
    layer_error: np.ndarray


class Scorer:
    """InputError where a setting does not fit the model. tell(setting): a pass is done."""

    def __init__(self, model, settings: list[Setting], indexer,
                 tell: Callable[[str], None] = lambda name: None):
        msa.register()
        self.model = model.eval()
        self.tell = tell
        self._own = model.config._attn_implementation
        self._decoder = decoder_of(model)
        self._keeps_logits = "logits_to_keep" in inspect.signature(model.forward).parameters
        self._branches = None if indexer is None else indexers.read(indexer)
        self.settings: list[Setting] = []
        self.plans: list[msa.Plan] = []
        self.add(settings)
        modules, _ = msa.attention_modules(model)
        self.layers = sorted(modules)
        names = {module: name for name, module in model.named_modules()}
        self._blocks = [model.get_submodule(names[modules[number]].rpartition(".")[0])
                        for number in self.layers]
        embedding = model.get_input_embeddings().weight
        self._device, self._vocabulary = embedding.device, len(embedding)

    def add(self, settings: list[Setting]):
        self.settings += settings
        self.plans += [msa.plan(self.model, one.how, self._branches, one.dense_layers, element=one.element)
                       for one in settings]

    @torch.no_grad()
    def __call__(self, ids: np.ndarray, foretold=None, settings: int | None = None,
                 by_layer: bool = True) -> Scores:
        """foretold: places of the tokens that are scored; default: of all but the first. settings: so
        many of them, the first; default: all. by_layer: compare the hidden states of the layers."""
        if not 0 <= ids.min() <= ids.max() < self._vocabulary:
            raise InputError(f"token ids from {ids.min()} to {ids.max()}; the vocabulary of the "
                             f"model is 0 to {self._vocabulary - 1}")
        tokens = torch.as_tensor(ids, device=self._device)[None]
        foretold = torch.as_tensor(np.arange(1, len(ids)) if foretold is None else foretold,
                                   device=self._device)
        dense: dict[int, torch.Tensor] = {}  # of a layer that runs several times, of the last time
        with self._behind_layers(by_layer, dense.__setitem__):
            found = [self._score(tokens, foretold)]
        self.tell("dense")
        plans = self.plans[:settings]
        errors = torch.full((len(plans), len(self.layers)), math.nan, dtype=torch.float64, device=self._device)
        self.model.set_attn_implementation(msa.NAME)
        try:
            for row, plan in enumerate(plans):
                plan.apply()

                def compare(number, hidden, row=row):
                    errors[row, number] = mean_error(hidden, dense[number])

                with self._behind_layers(by_layer, compare):
                    found.append(self._score(tokens, foretold))
                self.tell(self.settings[row].name)
        finally:
            self.model.set_attn_implementation(self._own)
        return Scores(*(np.stack(values) for values in zip(*found)), errors.cpu().numpy())

    def _score(self, tokens, foretold):
        nats, right = [], []
        for told, logits in self._logits(tokens, foretold):
            logits = logits.float()
            targets = tokens[0, told]
            nats.append(torch.nn.functional.cross_entropy(logits, targets, reduction="none"))
            right.append(logits.max(-1).indices == targets)  # the first of equals as argmax, in half its time on a CPU
        return torch.cat(nats).cpu().numpy(), torch.cat(right).cpu().numpy()

    def _logits(self, tokens, foretold):
        """Some of the places, and the logits that foretell them. The decoder runs once, the language
        head only where it is asked for; a model that cannot leave logits out gives all at once."""
        if not self._keeps_logits:
            logits = self.model(input_ids=tokens, use_cache=False).logits[0]
            for told in foretold.split(POSITIONS_AT_ONCE):
                yield told, logits[told - 1]
            return
        output = []
        hook = self._decoder.register_forward_hook(lambda *call: output.append(call[2]))
        try:
            self.model(input_ids=tokens, use_cache=False, logits_to_keep=1)
        finally:
            hook.remove()
        for told in foretold.split(POSITIONS_AT_ONCE):
            with patch.object(self._decoder, "forward", lambda *_, **__: output[0]):
                yield told, self.model(input_ids=tokens, use_cache=False,
                                       logits_to_keep=told - 1).logits[0]

    @contextmanager
    def _behind_layers(self, wanted: bool, tell):
        """tell(place, hidden states) behind each layer that runs, where that is wanted."""
        with ExitStack() as stack:
            for place, block in enumerate(self._blocks if wanted else []):
                def hook(_, __, output, place=place):
                    tell(place, (output[0] if isinstance(output, tuple) else output)[0])

                stack.callback(block.register_forward_hook(hook).remove)
            yield


def mean_error(hidden: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Mean over the tokens [n, channels] of |h - h_own| / |h_own|, which the host does not wait for. One token of huge
    norm, as the first of many models, counts as any other; tokens that are 0 are left out."""
    own = own.float()
    norm = own.norm(dim=-1)
    kept = norm > 0
    ratio = torch.where(kept, (hidden.float() - own).norm(dim=-1) / norm, 0.0)
    return ratio.sum(dtype=torch.float64) / kept.sum()
