# SPDX-License-Identifier: MIT
"""How the attention modules of a transformers model attend while it is trained: packed documents, one
micro-batch at a time, with an Index Branch in each layer that selects by its own (`indexer`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, masking_utils
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

from .. import analysis, selectors
from .. import torch as m
from ..capture import fitted
from ..capture.decoder import decoder_layers, decoder_of
from ..capture.gguf import place_of
from ..capture.layer import CaptureError, require
from ..capture.transformers_model import TransformersModel
from ..nn import IndexBranch, frequencies_of, rotation, select_and_attend
from ..operations import InputError, backend_of
from ..transformers import attention_modules

NAME = "msalab_train"
KINDS = ("msa", "dense", *selectors.SCORES)
MEASURED = 256  # queries at the end of a micro-batch's longest document, of which recall and entropy are
INITIAL = 0.02  # standard deviation of random projections
_ATTRIBUTE = "_msalab_train"  # of an attention module: its Layer


@dataclass
class Attention:
    """The attention of all layers. kind: one of KINDS. dense: the layers that attend to everything. kl_full_support:
    the KL is over all visible keys behind the warm-up, too. warming: only the Index Branches learn, beside full
    attention. keeps: activations within a layer are kept; otherwise they are computed again. The other fields belong to the current micro-batch: cu_seqlens, as a list and as a tensor on the
    CPU, and, where `measured` is a list, its measures (name, layer, value)."""

    kind: str
    rule: selectors.Rule
    dense: frozenset
    detach: bool
    kl_full_support: bool = False
    warming: bool = False
    keeps: bool = True
    layers: list[Layer] = field(default_factory=list)
    cu: list = field(default_factory=list)
    ends: torch.Tensor | None = None
    measured: list | None = None

    def begin(self, cu, positions, measure: bool):
        """positions [N], None where there is no micro-batch."""
        self.cu, self.ends, turns = cu, torch.tensor(cu), {}
        self.measured = [] if measure else None
        for layer in self.layers:
            layer.kl = layer.turns = None
            if layer.rope is not None and positions is not None:
                if layer.rope not in turns:  # once for all layers of these frequencies
                    turns[layer.rope] = rotation(positions, frequencies_of(layer.rope, positions.device), torch.float32)
                layer.turns = turns[layer.rope]

    @property
    def kl(self) -> dict:
        """Layer number -> KL loss, of each layer that has one."""
        return {layer.number: layer.kl for layer in self.layers if layer.kl is not None}

    def __call__(self, module, layer, q, k, v, given):
        """heads [N, Hq, dh] of q [N, Hq, dh], k and v [N, Hkv, dh]."""
        # In a graph a list is a constant; the values of a tensor may become others.
        cu = self.ends if torch.compiler.is_compiling() else self.cu
        lengths = {"cu_seqlens_q": cu, "cu_seqlens_k": cu}
        if layer.window is not None:
            return in_window(q, k, v, layer.window, self.cu, **given)
        if not layer.selects:
            return m.dense_attention(q, k, v, **given, **lengths)
        if self.kind != "msa":
            ids = self._chosen(q.detach(), k.detach(), given)
            self._measure(layer, q, k, ids, given)
            return m.sparse_attention(q, k, v, ids, block_size=self.rule.block_size, **given, **lengths)
        x, layer.x = layer.x, None
        with torch.enable_grad():  # in the warm-up, of this alone
            # Without its hooks, which are FSDP2's: the learner has gathered its weights.
            index_q, index_k = module.indexer.turned(x.detach() if self.detach or self.warming else x, layer.turns)
            index_q, index_k = index_q.to(q.dtype), index_k[:, 0].to(q.dtype)
            heads, ids, kl = select_and_attend(q, k, v, index_q, index_k, self.rule, cu,
                                               sparse=not self.warming,
                                               kl_full_support=self.kl_full_support, **given)
        if layer.kl is None:  # a layer runs again where its activations were not kept
            layer.kl = kl
        if self.measured is not None:
            if ids is None:
                ids = m.index_select(index_q, index_k, self.rule.top_k, block_size=self.rule.block_size,
                                     forced_first=self.rule.forced_first,
                                     forced_local=self.rule.forced_local, **lengths)
            self._measure(layer, q, k, ids, given)
        return heads

    @torch.compiler.disable
    def _chosen(self, q, k, given):
        return torch.cat([selectors.select(self.kind, q[begin:end], k[begin:end], self.rule, **given)
                          for begin, end in zip(self.cu, self.cu[1:])])

    @torch.compiler.disable
    @torch.no_grad()
    def _measure(self, layer, q, k, ids, given):
        number = layer.number
        if self.measured is None or any(one == number for _, one, _ in self.measured):
            return
        begin, end = max(zip(self.cu, self.cu[1:]), key=lambda span: span[1] - span[0])
        first = max(begin, end - MEASURED)
        q, k, ids = q[first:end].detach(), k[begin:end].detach(), ids[first:end]
        of = {"block_size": self.rule.block_size, "cu_seqlens_q": [0, end - first],
              "cu_seqlens_k": [0, end - begin]}
        mass = m.block_mass(q, k, **given, **of)
        found = {name: values.mean() for name, values in analysis.recall(ids, mass, **of).items()}
        found["entropy_dense"] = analysis.entropy(q, k, **given, **of).mean()
        found["entropy_sparse"] = analysis.entropy(q, k, ids, **given, **of).mean()
        self.measured += [(name, number, float(value)) for name, value in found.items()]


@dataclass
class Layer:
    """One that attends so. selects: by an Index Branch or a selector; window: tokens that it sees, None where all are
    seen; rope: frequencies of its Index Branch; turns: nn.rotation of the micro-batch by them; x: its input, until it
    attends; kl: of the micro-batch. All layers share the graphs of torch.compile, which
    do not read its number."""

    number: int
    attention: Attention
    selects: bool
    window: int | None = None
    rope: tuple | None = None
    turns: tuple | None = None
    x: torch.Tensor | None = None
    kl: torch.Tensor | None = None


def note_if_plain(modules: dict, dtype: torch.dtype, device: torch.device, note):
    """Says where dense attention has no fast kernel on this device, which a first call of it shows."""
    module = next(iter(modules.values()))
    q, k = (torch.zeros(512, heads, module.head_dim, dtype=dtype, device=device)
            for heads in (module.num_key_value_groups, 1))
    m.dense_attention(q, k, k, return_softmax_lse=True)
    kernel, _, why = backend_of(q).answered_by.partition("; ")
    if kernel == PLAIN:
        note(f"note: dense attention runs by the plain kernel, many times slower than another would ({why})")


PLAIN = "dense_attention_any"
AT_ONCE = 1024  # queries at most, whose logits are in memory where PyTorch has no kernel that keeps none


@torch.compiler.disable
def in_window(q, k, v, window: int, cu, softmax_scale=None, sinks=None):
    """heads [N, Hq, dv] of q [N, Hq, dh], k and v of Hkv heads: attention of each document in which a query sees
    `window` tokens, itself included. Where a document is longer, by PyTorch, some queries with the keys that they see
    at a time: the time and memory are of the window, not of the document."""
    if window >= max(end - begin for begin, end in zip(cu, cu[1:])):
        return m.dense_attention(q, k, v, softmax_scale=softmax_scale, sinks=sinks, cu_seqlens_q=cu, cu_seqlens_k=cu)
    group = q.shape[1] // k.shape[1]
    k, v = (one.repeat_interleave(group, 1) for one in (k, v))
    pieces = []
    for begin, end in zip(cu, cu[1:]):
        for first in range(begin, end, min(window, AT_ONCE)):
            last = min(first + min(window, AT_ONCE), end)
            low = max(begin, first - window + 1)
            query, key = (torch.arange(*of, device=q.device) for of in ((first, last), (low, last)))
            seen = (key <= query[:, None]) & (key > query[:, None] - window)
            pieces.append(_attended(q[first:last], k[low:last], v[low:last], seen, softmax_scale, sinks))
    return torch.cat(pieces)


def _attended(q, k, v, seen, scale, sinks):
    """heads [n, H, dv] where `seen` [n, m]; sinks [H]: a logit each, of a token without a value."""
    mask = seen
    if sinks is not None:
        mask = torch.zeros(seen.shape, dtype=q.dtype, device=q.device).masked_fill(~seen, float("-inf"))
        mask = torch.cat([mask.expand(len(sinks), -1, -1),
                          sinks.to(q.dtype)[:, None, None].expand(-1, len(q), 1)], -1)
        k, v = (torch.cat([one, torch.zeros_like(one[:1])]) for one in (k, v))
    heads = torch.nn.functional.scaled_dot_product_attention(*(one.transpose(0, 1) for one in (q, k, v)),
                                                             attn_mask=mask, scale=scale)
    return heads.transpose(0, 1)


@torch.compiler.disable
def _outside(attention: Attention, *given):
    """Of the graphs of torch.compile. A layer that runs again hands out no KL, so that its graph would be another
    one, which saves other tensors than the first."""
    return attention(*given)


def _attend(module, query, key, value, attention_mask=None, scaling=None, softcap=None, s_aux=None, dropout=0.0,
            position_bias=None, **_):
    """What an attention module calls: query [1, Hq, N, dh], key and value [1, Hkv, N, dh]."""
    layer = getattr(module, _ATTRIBUTE)
    for what, given in (("a soft cap", softcap), ("dropout", dropout), ("a bias on its logits", position_bias)):
        if not (given is None or isinstance(given, float) and not given):
            raise CaptureError(f"layer {layer.number} has {what} in its attention, through which msalab has no "
                               "gradient")
    q, k, v = (heads[0].transpose(0, 1).contiguous() for heads in (query, key, value))
    given = {"softmax_scale": scaling, "sinks": None if s_aux is None else s_aux.float().contiguous()}
    if not layer.attention.keeps:
        return _outside(layer.attention, module, layer, q, k, v, given)[None], None
    return layer.attention(module, layer, q, k, v, given)[None], None


def _keep_input(module, args, kwargs):
    getattr(module, _ATTRIBUTE).x = kwargs.get("hidden_states", args[0] if args else None)[0]


def _register():
    AttentionInterface.register(NAME, _attend)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)


def check_config(options):
    """CaptureError where the configuration alone says that gradients are not to be had: before any weight is read."""
    place, how = place_of(options.model)
    require(not (Path(options.model) / "adapter_config.json").is_file(), f"{options.model}: is an adapter (LoRA), and no "
            "whole model: merge it first (merge_and_unload() of peft, then save_pretrained())")
    _register()
    try:
        config = AutoConfig.from_pretrained(place, revision=options.revision, **how)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, attn_implementation=NAME)
        with patch.object(masking_utils, "find_packed_sequence_indices", lambda *_: None):  # it reads numbers
            trainable(model, options)
    except (CaptureError, InputError):
        raise
    except Exception:  # what does not run without weights is checked with them
        pass


def attach(modules, windows, model, attention: Attention, branches: dict[int, IndexBranch]):
    """Makes these attention modules of the model call `attention`. windows: of layers that have one, which they
    keep."""
    _register()
    attention.layers = [Layer(number, attention, attention.kind != "dense" and number not in attention.dense
                              and number not in windows, windows.get(number)) for number in modules]
    for layer, (number, module) in zip(attention.layers, modules.items()):
        object.__setattr__(module, _ATTRIBUTE, layer)
        if number in branches:
            module.indexer = branches[number]
            layer.rope = tuple(branches[number].frequencies.tolist())
            module.register_forward_pre_hook(_keep_input, with_kwargs=True)
    for part in _carriers(model, modules):
        part.forward = _by_document(part.forward, attention)
    model.set_attn_implementation(NAME)


def _carriers(model, modules) -> list:
    """Parts that carry what they have read from token to token without attention (Mamba, linear attention,
    convolutions): layers that do not attend, and beside attention what has a convolution."""
    found, attending = [], set(modules.values())
    for layer in decoder_layers(model):
        if not attending & set(layer.modules()):
            found.append(layer)
        else:
            found += [part for part in layer.children() if not attending & set(part.modules())
                      and any(isinstance(one, torch.nn.Conv1d) for one in part.modules())]
    return found


def _by_document(forward, attention: Attention):
    """forward(hidden [1, N, d], ...) of each document by itself. Kernels that are told where documents begin are not
    to be had on every device."""
    def some(given, begin, end):
        if isinstance(given, (tuple, list)):
            return type(given)(some(one, begin, end) for one in given)
        of_tokens = isinstance(given, torch.Tensor) and given.shape[:2] == (1, attention.cu[-1])
        return given[:, begin:end] if of_tokens else given

    @torch.compiler.disable
    def run(*args, **kwargs):
        made = [forward(*some(args, begin, end), **{name: some(one, begin, end) for name, one in kwargs.items()})
                for begin, end in zip(attention.cu, attention.cu[1:])]
        if isinstance(made[0], torch.Tensor):
            return torch.cat(made, 1)
        return torch.cat([one[0] for one in made], 1), *made[0][1:]

    return run


LEAK = 1e-3  # of the largest value; another order of sums is less


@torch.no_grad()
def check_documents(model, attention: Attention):
    """CaptureError if a document's output depends on another document of its row."""
    size = model.get_input_embeddings().weight.shape[0]
    tokens = torch.arange(24, device=model.device) * 7 % size
    first, second = tokens[:9], tokens[9:]

    def output(*documents):
        lengths = [len(one) for one in documents]
        positions = torch.cat([torch.arange(length, device=model.device) for length in lengths])
        attention.begin([0, *np.cumsum(lengths).tolist()], positions, False)
        return decoder_of(model)(input_ids=torch.cat(documents)[None], position_ids=positions[None],
                                 use_cache=False).last_hidden_state[0, -len(second):]

    alone, beside = output(second), output(first, second)
    attention.begin([], None, False)
    apart = float((alone - beside).abs().max() / alone.abs().max())
    require(not apart > LEAK, f"{type(model).__name__} carries state from one document of a row to the next, other than "
            f"by attention, which cannot be kept apart here: outputs differ by {apart:.1g} of the largest")


def trainable(model, options) -> tuple[dict, dict, list[int]]:
    """Layer -> its attention module, -> its sliding window where it has one, and the layers that will select.
    CaptureError where gradients are not to be had."""
    modules, windows = attention_modules(model)
    types = getattr(model.config.get_text_config(), "layer_types", None) or []
    require("chunked_attention" not in types, f"{type(model).__name__} has chunked attention, which cannot "
            "be trained here")
    own = [number for number, module in modules.items() if getattr(module, "indexer", None) is not None]
    require(not own, f"layers {own} have an Index Branch of their own; a model that has none is converted")
    unknown = sorted(set(options.dense_layers) - modules.keys())
    require(not unknown, f"--dense-layers names {unknown}; layers with attention are {sorted(modules)}")
    rest = sorted(modules.keys() - set(options.dense_layers) - windows.keys())
    require(rest or options.attention == "dense", "no layer is left to select: each is in --dense-layers or has a "
            "sliding window")
    return modules, windows, [] if options.attention == "dense" else rest


def forms_of(model, layers: list[int], options) -> dict[int, fitted.Fitted]:
    """First Index Branches of these layers: those of --indexer, or random ones with the layer's RoPE."""
    seen = {}
    TransformersModel(model).run(np.zeros(2, np.int64), layers, seen.__setitem__)
    if options.indexer is None:
        return {number: _random(number, layer, options) for number, layer in seen.items()}
    read = fitted.read(options.indexer)
    lacking = [number for number in layers if number not in read]
    require(not lacking, f"{options.indexer}: has no Index Branch of layers {lacking}; --dense-layers "
            "leaves them as they are")
    for number, layer in seen.items():
        form, groups, width = read[number], layer.k.shape[1], layer.x.shape[1]
        require((form.groups, form.w_q.shape[1]) == (groups, width), f"layer {number}: the Index Branch has "
                f"{form.groups} groups and takes {form.w_q.shape[1]} channels, the model has {groups} and "
                f"{width}: it was fitted to another model")
    return {number: read[number] for number in layers}


def _random(number: int, layer, options) -> fitted.Fitted:
    require(layer.rotary_dim is not None, f"layer {number}: its RoPE is of a kind unknown here; fit an Index "
            "Branch first (msa-fit-indexer --index-rotary) and name it by --indexer")
    dim, groups, width = options.index_dim, layer.k.shape[1], layer.x.shape[1]
    of_model = (fitted.plain_frequencies(layer.rotary_dim, layer.rope_theta or 1)
                if layer.rope_inv_freq is None else layer.rope_inv_freq.astype(float))
    rotary = min(dim, layer.rotary_dim) if options.index_rotary is None else options.index_rotary
    require(0 <= rotary <= dim and rotary % 2 == 0 and (rotary == 0 or layer.rotary_dim % rotary == 0),
            f"--index-rotary is {rotary}, must be even, at most --index-dim = {dim}, and divide the "
            f"{layer.rotary_dim} channels that the model turns in layer {number}")
    frequencies = of_model[::layer.rotary_dim // rotary] if rotary else of_model[:0]
    draw = np.random.default_rng([options.seed, number])
    w_q, w_k = (draw.normal(0, INITIAL, (rows, width)).astype(np.float32) for rows in (groups * dim, dim))
    ones = [np.ones(dim, np.float32) if options.index_norm == "rms" else None] * 2
    return fitted.Fitted(groups, w_q, w_k, *ones, frequencies,
                         None if layer.rope_inv_freq is not None else layer.rope_theta or 1.0)


def branch_of(form: fitted.Fitted) -> IndexBranch:
    norm = form.norm_q is not None
    branch = IndexBranch(form.w_q.shape[1], form.groups, len(form.w_k),
                         torch.from_numpy(np.ascontiguousarray(form.frequencies)), norm)
    values = {"q_proj": form.w_q, "k_proj": form.w_k} | (
        {"q_norm": form.norm_q, "k_norm": form.norm_k} if norm else {})
    branch.load_state_dict({f"{name}.weight": torch.from_numpy(value) for name, value in values.items()})
    return branch
