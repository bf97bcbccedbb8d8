# SPDX-License-Identifier: MIT
"""Any decoder of the transformers library, with the attention implementation it was loaded with.

Every attention layer there asks ALL_ATTENTION_FUNCTIONS.get_interface() for the function that
attends, and calls it with queries and keys after RoPE and with keys and values per group. For the
time of a run that method returns a function which records its arguments and then calls the one
that the model asked for: the model computes what it always computes, by eager, sdpa or flash.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .index_branch import IndexBranch
from .layer import CaptureError, Layer, require
from .tensors import of_one_sequence, to_numpy


class TransformersModel:
    """A Model (capture.py) around a loaded PreTrainedModel, with or without its language head."""

    producer = f"msacapture, transformers {transformers.__version__}, torch {torch.__version__}"

    def __init__(self, model: transformers.PreTrainedModel, model_id: str | None = None):
        decoder = model.get_decoder() if hasattr(model, "get_decoder") else model
        self.decoder = decoder.eval()
        self.model_id = model_id or model.config.name_or_path or type(model).__name__
        self.model_config = self.decoder.config.to_json_string(use_diff=False)
        self._attention = self._find_attention()
        self.layers = sorted(self._attention)

    @classmethod
    def load(cls, model_id: str, *, device: str = "cpu", dtype: str = "auto",
             attention: str | None = None, revision: str | None = None):
        """From the hub or a folder, in the type of its weights; device "auto" spreads it over all
        (needs the package accelerate). attention: sdpa, eager, flash_attention_2, ..."""
        try:
            model = transformers.AutoModel.from_pretrained(
                model_id, dtype=dtype, device_map=device if device == "auto" else None,
                attn_implementation=attention, revision=revision)
        except (OSError, ValueError, ImportError) as error:
            raise CaptureError(f"{model_id} cannot be loaded: {error}") from error
        return cls(model if device == "auto" else model.to(device), model_id)

    def run(self, tokens, layers, record):
        expected = {number: self._attention[number] for number in layers}
        inputs, branches = {}, {}
        with ExitStack() as stack:

            def observe(module, query, key, value, arguments):
                number = module.layer_idx
                if expected.get(number) is not module:
                    return
                require(number in inputs, f"layer {number}: attention ran twice")
                record(number, self._layer(module, query, key, value, arguments,
                                           inputs.pop(number), branches.get(number)))
                if number == max(expected):
                    raise _Done

            def keep_input(module, args, kwargs):
                inputs[module.layer_idx] = kwargs.get("hidden_states", args[0] if args else None)

            for number, module in expected.items():
                hook = module.register_forward_pre_hook(keep_input, with_kwargs=True)
                stack.callback(hook.remove)
                branch = IndexBranch.of(module)
                if branch is not None:
                    branches[number] = branch
                    stack.enter_context(branch.observed())
            stack.enter_context(_observed_attention(observe))
            self._forward(tokens)

    @torch.no_grad()
    def _forward(self, tokens):
        embedding = self.decoder.get_input_embeddings().weight
        require(0 <= tokens.min() and tokens.max() < len(embedding),
                f"token ids from {tokens.min()} to {tokens.max()}; the vocabulary of "
                f"{self.model_id} is 0 to {len(embedding) - 1}")
        try:
            self.decoder(input_ids=torch.as_tensor(tokens, device=embedding.device)[None],
                         use_cache=False)
        except _Done:
            pass

    def _find_attention(self) -> dict[int, torch.nn.Module]:
        """Layer number -> its attention module, found by running one token."""
        found = {}

        def observe(module, *_):
            number = getattr(module, "layer_idx", None)
            require(number is not None, f"{type(module).__name__} has no layer_idx: capture this "
                    "model through a ModuleAdapter")
            if getattr(module, "is_causal", True):
                require(found.setdefault(number, module) is module,
                        f"layer {number} has two attention modules, {type(found[number]).__name__} "
                        f"and {type(module).__name__}: capture this model through a ModuleAdapter")

        with _observed_attention(observe):
            self._forward(np.zeros(1, np.int64))
        require(found, f"no layer of {type(self.decoder).__name__} attends through "
                "transformers' attention interface: capture this model through a ModuleAdapter")
        return found

    def _layer(self, module, query, key, value, arguments, x, branch) -> Layer:
        require(arguments.get("position_bias") is None,
                f"layer {module.layer_idx}: adds a bias to the logits, which msa-activations "
                "cannot hold")
        state = "post_rope" if getattr(module, "use_rope", True) else "none"
        layer = Layer(q=of_one_sequence(query), k=of_one_sequence(key), v=of_one_sequence(value),
                      softmax_scale=float(arguments.get("scaling") or query.shape[-1] ** -0.5),
                      x=to_numpy(x[0]), q_state=state, k_state=state)
        window = arguments.get("sliding_window", getattr(module, "sliding_window", None))
        softcap, sinks = arguments.get("softcap"), arguments.get("s_aux")
        layer.sliding_window = None if window is None else int(window)
        if _layer_type(module) == "chunked_attention":
            layer.attention_chunk = int(module.config.attention_chunk_size)
        layer.softcap = None if softcap is None else float(softcap)
        layer.sinks = None if sinks is None else to_numpy(sinks.float())
        if state == "post_rope":
            layer.rotary_dim, layer.rope_theta = _rope(module, layer.q.shape[2])
        if branch is not None:
            layer.index_q, layer.index_k = branch.take()
            layer.weights = branch.weights()
        return layer


class _Done(Exception):
    """The last layer asked for is recorded: the rest of the model need not run."""


@contextmanager
def _observed_attention(observe):
    """Calls observe(module, query, key, value, keyword arguments) before each attention."""
    ask = ALL_ATTENTION_FUNCTIONS.get_interface

    def get_interface(*args, **kwargs):
        attend = ask(*args, **kwargs)

        def observed(module, query, key, value, *rest, **arguments):
            observe(module, query, key, value, arguments)
            return attend(module, query, key, value, *rest, **arguments)

        return observed

    with patch.object(ALL_ATTENTION_FUNCTIONS, "get_interface", get_interface):
        yield


def _layer_type(module) -> str | None:
    types = getattr(module.config, "layer_types", None)
    return types[module.layer_idx] if types else None


def _rope(module, head_dim: int) -> tuple[int | None, float | None]:
    """Rotated channels and theta of plain RoPE, as the configuration has them; (None, None) where
    it scales or mixes frequencies, so that two numbers do not describe it."""
    rope = getattr(module.config, "rope_parameters", None) or {}
    rope = rope.get(_layer_type(module), rope)  # some have one per layer type
    if rope.get("rope_type") != "default" or "rope_theta" not in rope:
        return None, None
    return int(head_dim * rope.get("partial_rotary_factor", 1)), float(rope["rope_theta"])
