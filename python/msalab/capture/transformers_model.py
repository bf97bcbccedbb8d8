# SPDX-License-Identifier: MIT
"""Any decoder of the transformers library, with the attention implementation it was loaded with.

Every attention layer there asks ALL_ATTENTION_FUNCTIONS.get_interface() for the function that
attends, and calls it with queries and keys after RoPE and with keys and values per group. For the
time of a run that method returns a function which records its arguments and then calls the one
that the model asked for: the model computes what it always computes, by eager, sdpa or flash.
"""

from __future__ import annotations

import inspect
from collections import Counter
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
import torch
import transformers
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .decoder import decoder_of, number_attention, without_attention
from .gguf import not_loaded, place_of
from .index_branch import IndexBranch
from .layer import CaptureError, Layer, require
from .other_kinds import has_latent, other_kind
from .qsa import QsaIndexer
from .rotary import RotaryObserver, Turned, at_position_zero, describe, random_like
from .tensors import of_one_sequence, to_numpy

ADAPTER = ("a ModuleAdapter captures such a model (python/README.md, \"Models outside "
           "transformers\")")


def positions_of(model) -> int | None:
    return getattr(model.config.get_text_config(), "max_position_embeddings", None)


def check_positions(said: str, tokens: int, most: int | None):
    """CaptureError, "--context is 40, must be at most 20 ...", where a model has fewer positions; None: no limit."""
    require(tokens <= (most or tokens), f"{said} {tokens}, must be at most {most}, the positions of the model")


class TransformersModel:
    """A Model (capture.py) around a loaded PreTrainedModel, with or without its language head."""

    producer = f"msalab capture, transformers {transformers.__version__}, torch {torch.__version__}"

    def __init__(self, model: transformers.PreTrainedModel, model_id: str | None = None):
        decoder = decoder_of(model)
        number_attention(decoder)
        self.decoder = decoder.eval()
        self.model_id = model_id or model.config.name_or_path or type(model).__name__
        self.model_config = self.decoder.config.to_json_string(use_diff=False)
        # What a sequence can have of tokens, where the model says it.
        self.positions = positions_of(decoder)
        self._rotary = RotaryObserver(decoder)
        self._passes = Counter()  # of a layer's attention in one of the model
        self._attention, self._turned = self._find_attention()
        self.layers = sorted(self._attention)
        self.without_attention = {number: what for number, what in without_attention(decoder).items()
                                  if number not in self._attention}

    @classmethod
    def load(cls, model_id: str, *, device: str = "cpu", dtype: str = "auto",
             attention: str | None = None, revision: str | None = None):
        """From the hub, a folder or a GGUF file, in the type of its weights (of a GGUF file bfloat16:
        it is quantised of weights in half precision); device "auto" spreads it over all
        (by the package accelerate). attention: sdpa, eager, flash_attention_2, ...

        The library's report of what it loads is silenced: it names the language head, which is
        not needed. Weights that are missing are an error."""
        check_device(device)
        place, how = place_of(model_id)
        verbosity = transformers.logging.get_verbosity()
        transformers.logging.set_verbosity_error()
        try:
            model, found = transformers.AutoModel.from_pretrained(
                place, dtype=own_dtype(dtype, how), device_map=device if device == "auto" else None,
                attn_implementation=attention, revision=revision, output_loading_info=True, **how)
        except Exception as error:  # the library raises errors of many types
            raise not_loaded(model_id, error) from error
        finally:
            transformers.logging.set_verbosity(verbosity)
        missing = sorted(found["missing_keys"])
        require(not missing, f"{model_id}: {len(missing)} weights are missing, the first is "
                f"{missing[:1]}; random ones would stand in for them")
        with _enough_memory(f"{model_id} on {device}"):
            return cls(model if device == "auto" else model.to(device), model_id)

    def run(self, tokens, layers, record):
        expected = {number: self._attention[number] for number in layers}
        for number, module in expected.items():
            what, passes = other_kind(module), self._passes[number]
            require(what is None, f"layer {number} of {self.model_id}: {what}")
            require(passes == 1, f"layer {number} of {self.model_id}: its attention runs {passes} times in one pass of "
                    f"the model, and msa-activations holds the queries and keys of one: {ADAPTER}")
        inputs, embeddings, branches, pieces = {}, {}, {}, {}
        with ExitStack() as stack:

            def observe(module, query, key, value, arguments):
                number = module.layer_idx
                if expected.get(number) is not module:
                    return
                require(number in inputs, f"layer {number}: attention ran twice")
                layer = self._layer(module, query, key, value, arguments, inputs.pop(number),
                                    branches.get(number), pieces.get(number))
                describe(layer, embeddings.pop(number) or self._rotary.newest(),
                         _rope_parameters(module), self._turned[number])
                record(number, layer)
                if number == max(expected):
                    raise _Done

            def keep_input(module, args, kwargs):
                inputs[module.layer_idx] = kwargs.get("hidden_states", args[0] if args else None)
                embeddings[module.layer_idx] = self._rotary.among((args, kwargs))

            for number, module in expected.items():
                hook = module.register_forward_pre_hook(keep_input, with_kwargs=True)
                stack.callback(hook.remove)
                branch = IndexBranch.of(module)
                if branch is not None:
                    branches[number] = branch
                    stack.enter_context(branch.observed())
                qsa = QsaIndexer.of(module)
                if qsa is not None:
                    pieces[number] = qsa
                    stack.enter_context(qsa.observed())
            stack.enter_context(_observed_attention(observe))
            stack.enter_context(self._rotary.observed())
            with _enough_memory(f"{self.model_id}, a sequence of {len(tokens)} tokens"):
                self._forward(tokens)

    def require_known(self, tokens, place: str = ""):
        """Token ids of the vocabulary; `place` begins the message that refuses others."""
        known = len(self.decoder.get_input_embeddings().weight)
        require(0 <= tokens.min() and tokens.max() < known, f"{place}token ids from {tokens.min()} to {tokens.max()}; the "
                f"vocabulary of {self.model_id} is 0 to {known - 1}")

    @torch.no_grad()
    def _forward(self, tokens):
        embedding = self.decoder.get_input_embeddings().weight
        self.require_known(tokens)
        try:
            self.decoder(input_ids=torch.as_tensor(tokens, device=embedding.device)[None],
                         use_cache=False)
        except _Done:
            pass

    def _find_attention(self):
        """Layer number -> its attention module, and -> what RoPE turns there; found by running two
        tokens."""
        found, arguments = {}, {}

        def observe(module, *_):
            number = getattr(module, "layer_idx", None)
            require(number is not None and number >= 0, f"{type(module).__name__} has layer_idx "
                    f"{number}, which is no number of a layer: {ADAPTER}")
            if getattr(module, "is_causal", True):
                self._passes[number] += 1
                require(found.setdefault(number, module) is module,
                        f"layer {number} has two attention modules, {type(found[number]).__name__} "
                        f"and {type(module).__name__}: {ADAPTER}")

        def keep(module, args, kwargs):
            arguments[module] = args, kwargs

        with ExitStack() as stack:
            for module in self.decoder.modules():
                if getattr(module, "layer_idx", None) is not None:
                    stack.callback(module.register_forward_pre_hook(keep, with_kwargs=True).remove)
            try:
                with _observed_attention(observe):
                    self._forward(np.zeros(2, np.int64))
                turned = {number: _turned(module, *arguments[module])
                          for number, module in found.items() if not has_latent(module)}
            except (CaptureError, torch.OutOfMemoryError):
                raise
            except Exception as error:  # whatever a model raises that needs more than tokens
                raise CaptureError(f"{type(self.decoder).__name__} does not run on token ids "
                                   f"alone ({type(error).__name__}: {error}): {ADAPTER}") from error
        require(found, f"no layer of {type(self.decoder).__name__} attends through "
                f"transformers' attention interface: {ADAPTER}")
        return found, turned

    def _layer(self, module, query, key, value, arguments, x, branch, qsa) -> Layer:
        require(arguments.get("position_bias") is None,
                f"layer {module.layer_idx}: adds a bias to the logits, which msa-activations "
                "cannot hold")
        layer = Layer(q=of_one_sequence(query), k=of_one_sequence(key), v=of_one_sequence(value),
                      softmax_scale=float(arguments.get("scaling") or query.shape[-1] ** -0.5),
                      x=to_numpy(x[0]))
        window = arguments.get("sliding_window", getattr(module, "sliding_window", None))
        softcap, sinks = arguments.get("softcap"), arguments.get("s_aux")
        layer.sliding_window = int(window) if window else None
        if _layer_type(module) == "chunked_attention":
            layer.attention_chunk = int(module.config.attention_chunk_size)
        layer.softcap = None if softcap is None else float(softcap)
        layer.sinks = None if sinks is None else to_numpy(sinks.float())
        if getattr(module, "indexer", None) is not None or _hides_keys(arguments, layer):
            layer.own_attention = "sparse"
        if branch is not None:
            layer.index_q, layer.index_k = branch.take()
            layer.weights = branch.weights()
            layer.own_block_size, layer.own_top_k = branch.block_size, branch.top_k
        if qsa is not None:
            layer.qsa_q, layer.qsa_k = qsa.take()
            layer.qsa_compress = qsa.compress
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
            mask = {"attention_mask": rest[0]} if rest else {}
            observe(module, query, key, value, mask | arguments)
            return attend(module, query, key, value, *rest, **arguments)

        return observed

    with patch.object(ALL_ATTENTION_FUNCTIONS, "get_interface", get_interface):
        yield


def _layer_type(module) -> str | None:
    types = getattr(module.config, "layer_types", None)
    return types[module.layer_idx] if types else None


def _rope_parameters(module) -> dict:
    """Of the configuration; some have them per layer type."""
    rope = getattr(module.config, "rope_parameters", None) or {}
    return rope.get(_layer_type(module), rope)


@torch.no_grad()
def _turned(module, args, kwargs) -> Turned:
    """Runs the module on random hidden states up to its attention, with its tokens where they are
    and with all of them at position 0. args and kwargs: of a call."""
    names = list(inspect.signature(module.forward).parameters)
    kwargs = dict(zip(names, args)) | kwargs
    hidden = "hidden_states" if "hidden_states" in kwargs else names[0]
    kwargs[hidden] = random_like(kwargs[hidden])

    def attended(changed):
        taken = []

        def take(_, query, key, *__):
            taken.extend((query, key))
            raise _Done

        with _observed_attention(take):
            try:
                module(**changed)
            except _Done:
                pass
        return taken

    here, at_zero = attended(kwargs), attended(at_position_zero(kwargs))
    channels = 0
    for one, other in zip(here, at_zero):
        differ = (one != other).flatten(0, -2).any(0).nonzero()
        channels = max(channels, *(differ[:, 0] + 1).tolist(), 0)
    last_token = (to_numpy(queries[0, :, -1].float()) for queries in (here[0], at_zero[0]))
    return Turned(channels, *last_token)


def _hides_keys(arguments, layer: Layer) -> bool:
    """Does the mask hide keys from the last query that the layer's window or chunk shows?"""
    mask = arguments.get("attention_mask")
    if mask is None or mask.ndim != 4:
        return False
    tokens = len(layer.q)
    last = mask[0, :, -1, :tokens]  # of each head or of all
    seen = (last if last.dtype == torch.bool else last == 0).sum(-1).min().item()
    chunk = layer.attention_chunk or tokens
    shown = min(tokens, layer.sliding_window or tokens, (tokens - 1) % chunk + 1)
    return seen < shown


def own_dtype(asked: str, how: dict) -> str:
    """What to load a model in; `how`: of place_of()."""
    return "bfloat16" if asked == "auto" and "gguf_file" in how else asked


def check_device(device: str):
    """CaptureError unless tensors can be made on it and brought back; "auto" is none."""
    if device == "auto":
        return
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).splitlines()[0]
        raise CaptureError(f"device {device} cannot be used: {why}") from error


@contextmanager
def _enough_memory(what: str):
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise CaptureError(f"{what}: not enough memory: {str(error).splitlines()[0]}") from error
