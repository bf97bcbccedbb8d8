# SPDX-License-Identifier: MIT
"""MSA in place of the attention of a transformers model:

    import msalab.transformers
    msalab.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(NAME, attn_implementation="msalab_msa")
    msalab.transformers.configure(model, selector="mean-key", block_size=128, top_k=16)

Prefill and decode with a cache, padding on either side, grouped queries, sinks and soft caps. A
layer with a sliding window keeps it, and attends to all of it. Where layers select by a fitted Index
Branch, generate() makes a Cache, which compiles. What cannot be had raises InputError: packed rows,
masks of one's own, chunked attention, dropout, weights of attention as an output, and transformers'
own static caches."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import cache_utils
from transformers.cache_utils import DynamicCache, DynamicLayer, StaticCache
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from . import advice as advices
from . import indexer as indexers
from . import joined as joins
from . import kv_cache, operations, rounding, selectors
from . import torch as m
from .capture.decoder import decoder_of, number_attention
from .capture.other_kinds import other_kind
from .nn import frequencies_of, rotation
from .operations import InputError
from .selectors import Choice, Rule

NAME = "msalab_msa"
_ATTRIBUTE = "_msalab"  # of an attention module: its Layer
OWN = "own"  # selector of a model that has an Index Branch itself
AT_ONCE = 32  # blocks of a query that tuned kernels attend to: kMostSelected of gpu/plan/limits.h
MARKED_AT_ONCE = 1 << 22  # numbers of keys
_CACHES = ("cache", "past_key_values", "past_key_value")  # an argument's names, newest first


def register() -> None:
    """Tells transformers of the attention implementation "msalab_msa"."""
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _spans)


@dataclass(frozen=True)
class Spans:
    """What a mask comes to: of each row of the batch, the keys and queries that are no padding, as
    [first key, end of keys, first query, end of queries] of what attention is given; the last query
    sits on the last key. queries, keys: of a row, with its padding; a static cache holds more keys.
    window: a query sees so many tokens, itself included; None: all."""

    rows: tuple
    queries: int
    keys: int
    window: int | None
    made: dict = field(default_factory=dict, init=False, compare=False, repr=False)

    def once(self, make: Callable, *key):
        """make(self, *key), once for all layers of a pass: each pass has a mask of its own."""
        if torch.compiler.is_compiling():
            return make(self, *key)
        at = make, key
        try:
            return self.made[at]
        except KeyError:
            self.made[at] = made = make(self, *key)
            return made

    def __getitem__(self, part):
        """Of a mask [batch, 1, queries, keys] the last queries, which is what layers that share keys
        ask of it (Gemma 4)."""
        every = slice(None)
        first, end, step = (part[2].indices(self.queries) if isinstance(part, tuple) and
                            len(part) == 4 and isinstance(part[2], slice) else (0, 0, 0))
        _require((end, step) == (self.queries, 1) and (*part[:2], part[3]) == (every,) * 3,
                 f"the model takes the part {part} of a mask; only its last queries can be had")
        rows = tuple((*keys, max(begin - first, 0), max(last - first, 0))
                     for *keys, begin, last in self.rows)
        return replace(self, rows=rows, queries=end - first)

    def contiguous(self):
        """Asked of a mask that generate() makes itself."""
        raise InputError(f"{NAME}: generate() with a static cache is not supported; use a dynamic "
                         "one")

    ndim = property(contiguous)  # since 5.24


def _require(condition, text: str):
    if not condition:
        raise InputError(f"{NAME}: {text}")


def _spans(batch_size, q_length, kv_length, q_offset=0, kv_offset=0,
           mask_function=causal_mask_function, attention_mask=None, local_size=None, device="cpu",
           **_) -> Spans:
    """The mask function of the implementation: never of size N x N."""
    kept = getattr(kv_length, "cache", None)
    if kept is not None:
        kept.take_mask(attention_mask, q_length, _valid_tokens)
        if kept.is_compileable:
            return None  # the cache knows what the mask says
        rows = tuple((begin, int(kv_length), max(begin - q_offset, 0), q_length) for begin in kept.rows.begins or
                     [0] * batch_size)
        return Spans(rows, q_length, int(kv_length), local_size)
    if torch.compiler.is_compiling():
        return _whole_spans(batch_size, q_length, kv_length, mask_function, attention_mask, local_size)
    q_offset = int(q_offset)  # of a static cache, a tensor
    if mask_function is not causal_mask_function:
        _check_mask(mask_function, batch_size, q_length, q_offset, kv_offset, local_size, device)
    end = q_offset + q_length
    rows = [(0, end)] * batch_size
    if attention_mask is not None:
        rows = [_valid_tokens(row, number) for number, row in
                enumerate(attention_mask[:, :end].cpu())]
    clipped = []
    for first, last in rows:
        keys = [min(max(token - kv_offset, 0), kv_length) for token in (first, last)]
        queries = [min(max(token - q_offset, 0), q_length) for token in (first, last)]
        clipped.append((*keys, *queries))
    return Spans(tuple(clipped), q_length, end - kv_offset, local_size)


def _whole_spans(batch_size, q_length, kv_length, mask_function, attention_mask, window) -> Spans:
    """For compilers, which do not see values: of rows without padding."""
    _require(attention_mask is None, "under torch.compile attention_mask must be absent: rows have no padding there, but "
             "with a cache of fixed capacity, whose mask is made before")
    return Spans(((0, kv_length, 0, q_length),) * batch_size, q_length, kv_length, window)


def _valid_tokens(row: Tensor, number: int):
    """[first, end) of the tokens of a row that are no padding."""
    tokens = row.nonzero()[:, 0]
    first, end = (int(tokens[0]), int(tokens[-1]) + 1) if len(tokens) else (0, 0)
    _require(len(tokens) == end - first, f"row {number} of attention_mask has padding between "
             "tokens; padding must be at one end (generate from prompts padded on the left)")
    return first, end


def _check_mask(mask_function, batch_size, q_length, q_offset, kv_offset, window, device):
    """Checks the mask at four keys of each query: the first that it should see, the one before, its own and the next.
    That tells causal attention in a window from packed rows, chunks and a caller's own mask."""
    batch = torch.arange(batch_size, device=device)[:, None]
    query = torch.arange(q_length, device=device)[None] + q_offset
    first = (query - (window or q_offset + q_length) + 1).clamp(min=0).clamp(min=kv_offset)

    def sees(key):
        return mask_function(batch, torch.zeros_like(batch), query, key)

    last = q_offset + q_length - 1
    right = sees(query).all() and sees(first).all()
    for key, exists in ((query + 1, query < last), (first - 1, first > kv_offset)):
        right = right and not (sees(key.clamp(kv_offset, last)) & exists).any()
    _require(right, "the mask is not that of causal attention, in a sliding window or without: "
             "packed rows (position_ids that begin anew), chunked attention and masks of one's own "
             "are not supported; give each sequence a row of its own")


@dataclass
class Held:
    """What a layer keeps beside a cache of the model: the index keys [batch, tokens, didx] of its tokens,
    the marks of its rows, which begin at `begins`, and the tensor of its keys while that lives."""

    index_k: Tensor
    marks: Tensor
    begins: tuple
    key: weakref.ref
    version: int | None

    def is_as_left(self, cache, number: int) -> bool:
        """Does the cache hold that very tensor, unchanged as far as PyTorch counts changes, and will it append
        to it? False where this cannot be told."""
        try:
            kept = cache.layers[number]
            appends = (cache.update.__func__, kept.update.__func__) == (cache_utils.Cache.update, DynamicLayer.update)
        except (AttributeError, LookupError, TypeError):
            return False
        return (appends and kept.keys is self.key() is not None
                and _version(kept.keys) == self.version is not None)


def _version(tensor: Tensor) -> int | None:
    """How often the tensor was changed in place; None of tensors of inference mode, which do not count."""
    return None if tensor.is_inference() else tensor._version


@dataclass
class Call:
    """What an attention module is called with: its input, its cache, what is held beside that, and whether the
    cache is surely as the last call left it."""

    x: Tensor | None
    cache: object = None
    held: Held | None = None
    is_as_left: bool = False


@dataclass
class Layer:
    """How one attention module attends."""

    number: int
    rule: Rule | None
    selector: str | Callable | None  # None: dense
    element: str | None = None  # of q, k and v, one of rounding.ELEMENTS; None: the model's own
    branch: indexers.IndexBranch | None = None
    source: Layer | None = None  # whose ids it takes
    shares: bool = False  # another layer takes its ids,
    ids: tuple | None = None  # which are these, of the last call, with the lengths of its sequences
    observe: Callable | None = None
    call: Call | None = None  # under way
    held: weakref.WeakKeyDictionary = field(default_factory=weakref.WeakKeyDictionary)  # cache -> Held
    hook: object = None
    joined: joins.Joined | None = None  # where a Cache serves it

    def prepare(self, module):
        """Has the weights of its Index Branch where the module reads its own, and joined with them."""
        like = next(module.parameters())
        if self.branch.w_q.device != like.device:
            self.branch = self.branch.to(like.device)
        weights = self.branch.joined(like.dtype if like.is_cuda else torch.float32)
        for tensor in (*weights, self.branch.frequencies):
            if tensor is not None:
                kv_cache.stays(tensor)
        self.joined = joins.Joined.of(module, self.branch, self.joined)
        if self.joined is not None:
            for tensor in (self.joined.weight, self.joined.bias):
                if tensor is not None:
                    kv_cache.stays(tensor)

    def keep_input(self, _, args, kwargs):
        x = kwargs.get("hidden_states", args[0] if args else None)
        cache = next((kwargs[name] for name in _CACHES if kwargs.get(name) is not None), None)
        self.call = Call(x, cache)
        if self.joined is not None and isinstance(cache, Cache) and not torch.is_grad_enabled():
            self.joined.begin(x)
        if cache is not None and self.branch is not None and not isinstance(cache, Cache):
            self.find_held()

    @torch.compiler.disable
    def find_held(self):
        call = self.call
        call.held = self.held.get(call.cache)
        call.is_as_left = call.held is not None and call.held.is_as_left(call.cache, self.number)

    @property
    def compiles(self) -> bool:
        """Without a cache."""
        return self.selector is None or self.branch is not None or (self.source is not None and self.source.compiles)


@dataclass
class Plan:
    """How each attention module of a model attends, checked."""

    layers: dict  # module -> Layer
    sparse: list[int]  # layers that select
    model: object

    def apply(self):
        """Makes the model attend by this plan, until another one is applied."""
        if hasattr(self.model, "_prepare_cache_for_generation"):
            self.model._prepare_cache_for_generation = types.MethodType(_prepare_cache, self.model)
            self.model._prefill = types.MethodType(_prefill, self.model)
        for module, layer in self.layers.items():
            old = getattr(module, _ATTRIBUTE, None)
            if old is not None:
                old.hook.remove()
            layer.hook = module.register_forward_pre_hook(layer.keep_input, with_kwargs=True)
            object.__setattr__(module, _ATTRIBUTE, layer)


def configure(model: Any, selector: str | Callable[..., Tensor] | None = None, block_size: int | None = None,
              top_k: int | None = None, indexer: str | Path | None = None, dense_layers: Iterable[int] = (), *,
              forced_first: int | None = None, forced_local: int | None = None,
              advice: str | Path | dict[int, Choice | None] | None = None,
              observe: Callable[[int, Tensor | None], object] | None = None,
              index_keys: str | None = None, element: str | None = None) -> list[int]:
    """Says how each attention layer of a loaded model selects; may be called again.

    selector: "oracle", "mean-key" (where nothing is said), "quest", "window"; "own": the model's
    own Index Branch, block size and k (MiniMax-M3); or a function as in selectors.find. With ":every=4" behind a name
    the first of four layers selects, and the others take its ids; with ":leaders=0+3+11" these layers do.
    indexer: the results.h5 of msa-fit-indexer, whose weights then select ("index").
    block_size, top_k, forced_first, forced_local: which blocks are kept; where nothing is said,
    what the indexer was fitted for, without one those of selectors.Rule. On a GPU more than 32 blocks are attended to
    32 at a time without a gradient or a Cache, and an Index Branch selects them by a plain kernel, many times slower.
    advice: each layer's own setting: the summary.json of msa-advise, or {layer: selectors.Choice, or
    None where it stays dense}.
    dense_layers: numbers of layers that attend to everything; layers with a sliding window keep
    to it. observe(layer, ids): is told the blocks [n, Hkv, k] that the n queries of all rows
    attend to, and for a dense layer None.
    index_keys: "int8", how an Index Branch, and with it a cache, has its keys; None: as the model has its own.
    element: "e4m3" rounds queries, keys and values of the layers that select, behind their selection, to e4m3: with a scale
    of each row and head of q, and of each block and group of k and of v, all of whose tokens decide it. "e4m3:unscaled":
    k and v have none, and beyond 448 they are 448. None: as the model has them. The gradient passes straight through the
    rounding, as msalab.torch.sparse_attention says. A Cache holds k and v without scales alone.
    Returns the layers that select. InputError where a layer cannot."""
    parts = {"block_size": block_size, "top_k": top_k, "forced_first": forced_first,
             "forced_local": forced_local}
    if advice is None:
        how = choice(selector, indexer, **parts)
    else:
        given = [name for name, value in ({"selector": selector} | parts).items() if value is not None]
        _require(not given, f"{', '.join(given)} is given, and so is advice, which says it for each "
                 "layer")
        how = advice if isinstance(advice, dict) else advices.read(advice)
    _require(index_keys in (None, "int8"), f"index_keys is {index_keys!r}, must be 'int8' or None")
    made = plan(model, how, indexer, dense_layers, observe, index_keys, element)
    made.apply()
    return made.sparse


def choice(selector, indexer, **parts) -> Choice:
    """A selector with these parts of its rule; those that are None are the fit's, or the defaults."""
    selector, shares = selectors.sharing(selector or ("mean-key" if indexer is None else "index"))
    _require(indexer is None or selector == "index", f"selector is {selector!r}, but an "
             "indexer is given, which selects itself")
    rule = Rule() if indexer is None else indexers.rule(indexer)
    return Choice(selector, replace(rule, **{name: value for name, value in parts.items()
                                             if value is not None}), **shares)


def plan(model, how: Choice | dict, indexer, dense_layers, observe=None, index_keys=None, element=None) -> Plan:
    """What configure() would apply. how: of every layer, or of each one."""
    rounding.check_element(element)
    modules, windows = attention_modules(model)
    dense = set(dense_layers)
    unknown = sorted(dense - modules.keys())
    _require(not unknown, f"dense_layers names {unknown}; layers with attention are "
             f"{sorted(modules)}")
    rest = sorted(modules.keys() - dense - windows.keys())
    if isinstance(how, dict):
        unsaid = [number for number in rest if number not in how]
        _require(not unsaid, f"the advice says nothing of layers {unsaid}; it is of those captured, "
                 f"{sorted(how)}: capture them, or name them in dense_layers")
        choices = {number: how[number] for number in rest if how[number] is not None}
    else:
        choices = dict.fromkeys(rest, how)
    _require(choices, "no layer is left to select: each is in dense_layers or has a sliding window")
    if any(one.selector == OWN for one in choices.values()):
        choices = {number: one for number, one in choices.items()
                   if getattr(modules[number], "indexer", None)}
        _require(choices, "selector \"own\" is for models that have an Index Branch, as MiniMax-M3")
    sources = _sources(choices, modules)
    branches = _branches({number: one for number, one in choices.items() if number not in sources}, indexer)
    _require(index_keys is None or branches, "index_keys is given, but no layer selects by a fitted Index Branch")
    layers = {}
    numbered = {}
    for number, module in sorted(modules.items()):
        one, branch = choices.get(number), branches.get(number)
        layer = layers[module] = numbered[number] = Layer(number, one and one.rule, one and one.selector,
                                                          one and element, observe=observe)
        if branch is not None:
            _check_fit(branch, module, number)
            if branch.layer == number:
                branch = branch if index_keys is None else branch.in_int8()
                layer.branch = branch.to(next(module.parameters()).device)
            else:
                layer.source = numbered[branch.layer]
        elif number in sources:
            layer.source = numbered[sources[number]].source or numbered[sources[number]]
        if layer.source is not None:
            layer.source.shares = True
        if layer.selector == OWN:
            _check_heads(module, number)
            layer.rule = Rule(module.indexer.block_size, module.indexer.topk_blocks)
    return Plan(layers, sorted(choices), model)


def _sources(choices: dict, modules) -> dict:
    """Of the layers that take the ids of another one, its number."""
    found = {}
    for number, one in choices.items():
        _require(one.selector != OWN or (one.every == 1 and not one.leaders),
                 "selector \"own\" has its layers as the model has them; they share no ids")
        unknown = [leader for leader in one.leaders if leader not in choices]
        _require(not unknown, f"layers {unknown} are to lead, must be of those that select, {sorted(choices)}")
        before = [leader for leader in sorted(choices) if leader <= number and
                  (leader in one.leaders if one.leaders else leader // one.every == number // one.every)]
        _require(before, f"layer {number} is to take the ids of a layer before it, and the first of those that lead are "
                 f"{[*one.leaders[:3]]}")
        source = before[-1 if one.leaders else 0]
        if source != number:
            _require(choices[source] == one and _groups(modules[source]) == _groups(modules[number]),
                     f"layer {number} takes the ids of layer {source}, which has other groups or selects otherwise")
            found[number] = source
    return found


def _branches(choices: dict, indexer) -> dict:
    """Of the layers whose Index Branch selects."""
    wanted = [number for number, one in choices.items() if one.selector == "index"]
    for one in choices.values():
        if one.selector not in ("index", OWN):
            selectors.find(one.selector)
    _require(not wanted or indexer is not None, "selector \"index\" needs an indexer, the results.h5 "
             "of msa-fit-indexer")
    if not wanted:
        return {}
    found = indexer if isinstance(indexer, dict) else indexers.read(indexer)
    lacking = [number for number in wanted if number not in found]
    _require(not lacking, f"the indexer has no Index Branch of layers {lacking}; it has those of "
             f"{sorted(found)}: fit them, or name them in dense_layers")
    for number in wanted:
        source = found[number].layer
        _require(source in wanted and choices[source].rule == choices[number].rule, f"layer {number} takes the "
                 f"ids of layer {source}, which does not select by its Index Branch for the same blocks")
    return {number: found[number] for number in wanted}


def _groups(module) -> int:
    return module.config.num_attention_heads // module.num_key_value_groups


def _check_heads(module, number: int):
    heads, groups = module.indexer.num_heads, _groups(module)
    _require(heads == groups, f"layer {number}: {type(module.indexer).__name__} has {heads} index heads; there is one "
             f"index head for each of the {groups} groups")


def _check_fit(branch, module, number: int):
    groups = _groups(module)
    width = module.q_proj.in_features if hasattr(module, "q_proj") else branch.w_q.shape[1]
    _require(branch.groups == groups and branch.w_q.shape[1] == width, f"layer {number}: the Index "
             f"Branch has {branch.groups} groups and takes {branch.w_q.shape[1]} channels, the "
             f"model has {groups} and {width}: it was fitted to another model")


@torch.no_grad()
def attention_modules(model):
    """Layer -> its attention module, and -> its sliding window where it has one; found by running
    two tokens."""
    found, windows = {}, {}

    def attend(module, query, key, value, *_, sliding_window=None, **__):
        number = getattr(module, "layer_idx", None)
        _require(number is not None and number >= 0, f"{type(module).__name__} has layer_idx {number}, "
                 "which is no number of a layer")
        _require(getattr(module, "is_causal", True), f"layer {number} is not causal")
        _require(found.setdefault(number, module) is module, f"layer {number} has two attention "
                 "modules")
        what, indexer = other_kind(module), getattr(module, "indexer", None)
        _require(what is None, f"layer {number}: {what}")
        _require(indexer is None or hasattr(indexer, "topk_blocks"), f"layer {number}: "
                 f"{type(indexer).__name__} selects tokens, and takes a mask of all queries and keys, which "
                 "is never made here; `msalab capture` takes such a layer")
        window = sliding_window or getattr(module, "sliding_window", None)
        if window and _layer_type(module) != "full_attention":
            windows[number] = int(window)
        return query.new_zeros((len(query), query.shape[2], query.shape[1], value.shape[-1])), None

    number_attention(model)
    decoder = decoder_of(model)
    device = decoder.get_input_embeddings().weight.device
    with patch.object(ALL_ATTENTION_FUNCTIONS, "get_interface", lambda *_, **__: attend):
        decoder(input_ids=torch.zeros((1, 2), dtype=torch.long, device=device), use_cache=False)
    _require(found, f"no layer of {type(model).__name__} attends through transformers' attention "
             "interface")
    return found, windows


def _layer_type(module):
    types = getattr(module.config, "layer_types", None)
    return types[module.layer_idx] if types else None


class Cache(cache_utils.Cache):
    """The cache of a model for which configure() was called: of layers that select by an Index Branch keys, values and
    index keys in one place, to which tokens are added without a copy; of other layers what transformers has for them.
    generate() makes one itself, with cache_implementation="static" one of fixed capacity, whose decoding it compiles.

    max_cache_len: the most tokens of a row; None: as many as come. offloading: layers wait on the CPU for their turn."""

    def __init__(self, model, max_cache_len: int | None = None, offloading: bool = False):
        layers, config = layers_of(model), model.config.get_text_config(decoder=True)
        reason = why_not_cached(model, max_cache_len is not None)
        _require(not reason, reason)
        super().__init__(layers=(DynamicCache(config=config) if max_cache_len is None else
                                 StaticCache(config=config, max_cache_len=max_cache_len)).layers, offloading=offloading)
        self.configured = _Same(layers)
        cached = [number for number, layer in sorted(layers.items()) if layer.selector == "index"]
        unit = kv_cache.unit_of(layers[number].rule for number in cached)
        self.rows = kv_cache.Rows(None if max_cache_len is None else -(-max_cache_len // unit) * unit, unit)
        for number in cached:
            self.layers[number] = kv_cache.CachedLayer(number, self.rows, number == cached[0],
                                                       layers[number].element is not None)
        for module in model.modules():
            layer = getattr(module, _ATTRIBUTE, None)
            if layer is not None and layer.branch is not None:
                layer.prepare(module)
        self.first, self.last = self.layers[cached[0]], self.layers[cached[-1]]

    @property
    def is_compileable(self) -> bool:
        return self.rows.fixed and not self.offloading

    def get_mask_sizes(self, query_length, layer_idx):
        if self.is_sliding[layer_idx]:
            return super().get_mask_sizes(query_length, layer_idx)
        return self.first.get_mask_sizes(query_length)

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
        if not isinstance(self.layers[layer_idx], kv_cache.CachedLayer):
            return super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return self.layers[layer_idx].update(key_states, value_states)  # attention offloads


class _Same:
    """What a copy of a cache has in common with it."""

    def __init__(self, of):
        self.of = of

    def __deepcopy__(self, memo):
        return self


def layers_of(model) -> dict:
    """Number -> Layer of a model for which configure() was called."""
    found = {layer.number: layer for module in model.modules()
             if (layer := getattr(module, _ATTRIBUTE, None)) is not None}
    _require(found, "the model has not been told how to select: call msalab.transformers.configure(model, ...)")
    return found


def why_not_cached(model, fixed: bool) -> str:
    """Why there is no Cache for a configured model, of fixed capacity or growing; empty where there is."""
    layers, config = layers_of(model), model.config.get_text_config(decoder=True)
    others = [number for number, layer in sorted(layers.items()) if layer.selector != "index"]
    if len(others) == len(layers):
        return "no layer selects by an Index Branch; the caches of transformers serve the others"
    if getattr(config, "num_kv_shared_layers", 0):
        return "layers share keys; use a DynamicCache"
    if any(layer.element == rounding.SCALED for layer in layers.values()):
        return (f"element is {rounding.SCALED}, where all tokens of a block decide its scale, and a cache takes one at a "
                f"time; {rounding.UNSCALED} has no such scale, and a DynamicCache keeps what the model gives it")
    if fixed and others:
        return (f"layers {others} do not select by an Index Branch; a cache of fixed capacity is for models whose layers "
                "all do")
    return ""


def _prepare_cache(model, generation_config, model_kwargs, *args, **kwargs):
    """generate() asks the model for a cache: in place of transformers' own one of the same kind."""
    type(model)._prepare_cache_for_generation(model, generation_config, model_kwargs, *args, **kwargs)
    name = next((name for name in _CACHES if name in model_kwargs), None)
    made, config = model_kwargs.get(name), model.config.get_text_config(decoder=True)
    if (getattr(made, "_is_user_defined", False) or type(made) not in (DynamicCache, StaticCache)
            or config._attn_implementation != NAME or len(made) == 0):
        return
    most = made.layers[0].max_cache_len if type(made) is StaticCache else None
    if not why_not_cached(model, most is not None):
        model_kwargs[name] = Cache(model, most, made.offloading)


def _prefill(model, input_ids, generation_config, *args, **kwargs):
    """Of generate(): chunks of a prompt, too, are not compiled. They begin the cache, whose tensors must not lie in a CUDA
    graph, and say on the host where rows begin."""
    with patch.object(generation_config, "disable_compile", True):
        return type(model)._prefill(model, input_ids, generation_config, *args, **kwargs)


def _attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, softcap=None,
               s_aux=None, position_bias=None, block_indices=None, **options):
    """What an attention module of transformers calls: query [batch, Hq, Nq, dh], key and value
    [batch, Hkv, Nk, dh]. Returns [batch, Nq, Hq, dh] and no weights."""
    layer = getattr(module, _ATTRIBUTE, None)
    _require(layer is not None, "the model has not been told how to select: call "
             "msalab.transformers.configure(model, ...)")
    _require(not dropout, f"dropout of attention is {dropout}, must be 0")
    _require(position_bias is None, "a bias on the logits is not supported")
    _require(not options.get("output_attentions"), "weights of attention are not at hand: "
             "output_attentions must be False")
    call, layer.call = layer.call, None
    given = {"softmax_scale": scaling, "softcap": softcap,
             "sinks": None if s_aux is None else s_aux.float().contiguous()}
    cache = None if call is None else call.cache
    if isinstance(cache, Cache) and isinstance(cache.layers[layer.number], kv_cache.CachedLayer):
        return _attention_cached(layer, cache, call.x, query, key, value, **given), None
    _require(isinstance(attention_mask, Spans), "the model or its caller makes a mask of its own "
             f"({type(attention_mask).__name__}); attention_mask must be 2-dimensional, or absent")
    attend = _attention_packed if cache is None and layer.compiles else _attention_unseen
    return attend(layer, call, query, key, value, attention_mask, block_indices, given), None


def _attention_cached(layer, cache, x, query, key, value, softmax_scale, softcap, sinks):
    """Of tokens whose keys go into the cache, and are read there."""
    kept, rule, new = cache.layers[layer.number], layer.rule, query.shape[2]
    _require(cache.configured.of.get(layer.number) is layer, "the cache is of another model or configuration")
    _require(not (torch.is_grad_enabled() and query.requires_grad), "a cache has no gradient: call the model under "
             "torch.no_grad()")
    rows, made = kept.rows, None if layer.joined is None else layer.joined.end()
    if cache.offloading:
        kept.prefetch()
    q, k, v = (heads.transpose(1, 2).to(kept.kept) for heads in (query, key, value))
    q_scales = None
    if layer.element is not None:
        (q, q_scales), k, v = rounding.rows_in_e4m3(q), rounding.nearest(k), rounding.nearest(v)
    branch, index_q, index_k = layer.branch, None, None
    lengths, known = kept.step(branch, new)
    if branch is not None:
        turns = rows.turned(branch.rope, branch.frequencies)
        index_q, index_k = (branch.stored(heads, kept.kept) for heads in branch(x, turns, made))
    kept.write(k, v, index_k, lengths, known)
    where = (rows.table, lengths)
    if branch is not None:
        ids = kv_cache.select(index_q, index_k, kept.index_keys, *where, rule.top_k, rule.forced_first,
                              rule.forced_local, rule.block_size, known)
        layer.ids = (ids, new) if layer.shares else None
    else:
        ids = _taken_ids(layer, new)
    out = kv_cache.attend(q, k, v, kept.keys, kept.values, ids, sinks, q_scales, *where, rule.block_size, softmax_scale,
                          softcap, known)
    if kept is cache.last:
        kept.end()
    if cache.offloading:
        kept.offload()
    if layer.observe is not None:
        layer.observe(layer.number, ids.flatten(0, 1))
    return out.to(query.dtype)


@torch.compiler.disable
def _attention_unseen(*arguments):
    """By what compilers do not see."""
    return _attention_packed(*arguments)


def _attention_packed(layer, call, query, key, value, attention_mask, block_indices, given):
    """Of tokens beside all their keys."""
    element = torch.float32 if query.device.type == "cpu" else query.dtype
    spans = attention_mask.rows
    q, k, v = (_packed(heads.transpose(1, 2), attention_mask, of, element)
               for heads, of in ((query, 2), (key, 0), (value, 0)))
    lengths = attention_mask.once(_lengths)
    cu_q, cu_k = lengths.values()
    if layer.selector is None or attention_mask.window is not None:
        ids = None
        out = _dense(q, k, v, attention_mask.window, **given, **lengths)
    else:
        if layer.selector == OWN:
            ids = _own_ids(block_indices, spans, cu_q)
        elif layer.source is not None:
            ids = _taken_ids(layer, lengths).to(query.device)
        elif layer.branch is not None:
            ids = _index_ids(layer, call, key, attention_mask, element, lengths)
            layer.ids = (ids, lengths) if layer.shares else None
        else:
            ids = _joined([
                selectors.select(layer.selector, q[cu_q[row]:cu_q[row + 1]].detach(),
                                 k[cu_k[row]:cu_k[row + 1]].detach(), layer.rule, **given)
                for row in range(len(spans))])
            layer.ids = (ids, lengths) if layer.shares else None
        stored = None if layer.element is None else _in_e4m3(layer, q, k, v, attention_mask)
        out = _attended(q, k, v, ids, stored, block_size=layer.rule.block_size, **given, **lengths)
    if layer.observe is not None:
        layer.observe(layer.number, ids)
    return _unpacked(out.to(query.dtype), query, attention_mask, cu_q)


def _may_be_cut(q, k, v, sinks) -> bool:
    """On a GPU attention may be made of several calls where it has no sinks, and nothing has a gradient."""
    return q.is_cuda and sinks is None and not (torch.is_grad_enabled() and any(one.requires_grad for one in (q, k, v)))


def _dense(q, k, v, window: int | None, **how) -> Tensor:
    """m.dense_attention. On a GPU only its plain kernel has a window, and PyTorch attends where each row is longer than it
    and has its own keys alone."""
    ends = how["cu_seqlens_q"]
    if (window is None or how["softcap"] is not None or ends != how["cu_seqlens_k"] or not _may_be_cut(q, k, v, how["sinks"])
            or any(end - begin <= window for begin, end in zip(ends, ends[1:]))):
        return m.dense_attention(q, k, v, window=window, **how)
    return _joined([_in_window(*(one[begin:end] for one in (q, k, v)), window, how["softmax_scale"])
                    for begin, end in zip(ends, ends[1:])])


def _in_window(q, k, v, window: int, scale: float | None) -> Tensor:
    """[n, Hq, dh] of a sequence q [n, Hq, dh], k and v [n, Hkv, dh], n more than the window, by PyTorch: `window` queries
    at a time with as many keys before them and their own. What fills up the last of them is after all queries."""
    tokens, many = len(q), -(-len(q) // window)
    q, k, v = (torch.nn.functional.pad(one, (0, 0, 0, 0, 0, many * window - tokens)).unflatten(0, (many, window)).transpose(
        1, 2) for one in (q, k, v))  # [many, heads, window, dh]
    k, v = (one.repeat_interleave(q.shape[1] // one.shape[1], 1) for one in (k, v))
    query, key = torch.arange(window, device=q.device)[:, None], torch.arange(2 * window, device=q.device)
    attend = functools.partial(torch.nn.functional.scaled_dot_product_attention, scale=scale)
    rest = attend(q[1:], *(torch.cat([one[:-1], one[1:]], 2) for one in (k, v)),
                  attn_mask=(key > query) & (key <= query + window))
    return torch.cat([attend(q[:1], k[:1], v[:1], is_causal=True), rest]).transpose(1, 2).flatten(0, 1)[:tokens]


def _attended(q, k, v, ids, stored: rounding.Stored | None = None, **how) -> Tensor:
    """m.sparse_attention. On a GPU more blocks than its tuned kernels take are attended to in parts, whose softmaxes are
    joined, in a type that these kernels have: out differs by the rounding of the parts to its type."""
    if (ids.shape[-1] <= AT_ONCE or (q.dtype is torch.float32 and stored is None) or how["softcap"] is not None
            or not _may_be_cut(q, k, v, how["sinks"])):
        return _attend(q, k, v, ids, stored, **how)
    return _attended_in_parts(q, k, v, ids, AT_ONCE, stored=stored, **how)


def _attend(q, k, v, ids, stored=None, **how):
    """By what q, k and v are stored as."""
    return m.sparse_attention(q, k, v, ids, **how) if stored is None else m.attend_rounded(q, k, v, ids, stored, **how)


def _attended_in_parts(q, k, v, ids, at_once: int, **how) -> Tensor:
    parts = [_attend(q, k, v, part.contiguous(), return_softmax_lse=True, **how) for part in ids.split(at_once, -1)]
    lse = torch.stack([lse for _, lse in parts])
    shares = torch.where(lse.isneginf().all(0), 0.0, torch.softmax(lse, 0))  # of a query without a block
    return sum(out.float() * share[..., None] for (out, _), share in zip(parts, shares)).to(parts[0][0].dtype)


def _in_e4m3(layer, q, k, v, mask: Spans) -> rounding.Stored:
    numbers = None
    if layer.element == rounding.SCALED:
        numbers = mask.once(_block_numbers, layer.rule.block_size, k.device)
    return rounding.stored(q, k, v, layer.element, numbers)


def _block_numbers(mask: Spans, block_size: int, device):
    return rounding.block_numbers(_ends(mask.rows, 0), block_size, device)


def _joined(rows: list[Tensor]) -> Tensor:
    """Behind each other; one alone is not copied."""
    return torch.cat(rows) if len(rows) > 1 else rows[0]


def _packed(tokens: Tensor, mask: Spans, of: int, element) -> Tensor:
    """[N, ...] of the rows [batch, tokens, ...]: without their padding, in row-major order."""
    if mask.once(_are_whole, of, tokens.shape[1]):
        packed = tokens.flatten(0, 1)
    else:
        packed = _joined([tokens[row, span[of]:span[of + 1]] for row, span in enumerate(mask.rows)])
    return (packed if packed.dtype is element else packed.to(element)).contiguous()


def _are_whole(mask: Spans, of: int, tokens: int) -> bool:
    """Have rows of so many tokens no padding?"""
    return all(span[of:of + 2] == (0, tokens) for span in mask.rows)


def _lengths(mask: Spans) -> dict:
    return {"cu_seqlens_q": _ends(mask.rows, 2), "cu_seqlens_k": _ends(mask.rows, 0)}


def _ends(spans, of: int) -> list[int]:
    ends = [0]
    for span in spans:
        ends.append(ends[-1] + span[of + 1] - span[of])
    return ends


def _unpacked(out: Tensor, query: Tensor, mask: Spans, cu_q) -> Tensor:
    """[batch, Nq, Hq, dh]; queries of padding are 0."""
    length = query.shape[2]
    if mask.once(_are_whole, 2, length):
        return out.view(len(mask.rows), length, *out.shape[1:])
    return torch.stack([torch.nn.functional.pad(
        out[cu_q[row]:cu_q[row + 1]], (0, 0, 0, 0, span[2], length - span[3]))
        for row, span in enumerate(mask.rows)])


def _own_ids(block_indices, spans, cu_q) -> Tensor:
    """Ours of what the model's own indexer selected, [batch, Hkv, Nq, k] in any order."""
    _require(block_indices is not None, "the model hands over no blocks of its own indexer")
    _require(all(span[0] == 0 for span in spans), "the model's own blocks begin at the first "
             "token of a row: padding must be on the right")
    padding = torch.iinfo(torch.int32).max
    rows = [block_indices[row, :, span[2]:span[3]].transpose(0, 1)
            for row, span in enumerate(spans)]
    ids = torch.cat(rows).to(torch.int32)
    ids = torch.where(ids < 0, padding, ids).sort(-1).values
    return torch.where(ids == padding, -1, ids).contiguous()


def _taken_ids(layer: Layer, lengths) -> Tensor:
    """Those of the layer that it shares an Index Branch with, which ran before it."""
    source = layer.source
    _require(source.ids is not None and source.ids[1] == lengths, f"layer {layer.number} takes the ids of layer "
             f"{source.number}, which did not run before it on the same tokens")
    return source.ids[0]


@torch.no_grad()
def _index_ids(layer: Layer, call: Call | None, key, mask: Spans, element, lengths) -> Tensor:
    """By the fitted Index Branch, whose keys are kept beside the model's cache; its operands are of the type
    `element`."""
    _require(call is not None and call.x is not None, f"layer {layer.number}: its input was not seen")
    x, held = call.x, call.held
    tokens, new, spans = mask.keys, x.shape[1], mask.rows
    begins = tuple(span[0] for span in spans)
    index_q, index_k = layer.branch(x, _turns_of(layer.branch, mask, new, x.device))
    index_q, index_k = (layer.branch.stored(heads, element) for heads in (index_q, index_k))
    as_left = call.is_as_left and begins == held.begins
    marks = None if call.cache is None else torch.cat(
        [held.marks, *_marks(key, tokens - new, tokens)] if as_left
        else [mask.once(_begins, x.device), *_marks(key, 0, tokens)], 1)
    if tokens > new:
        old = held.index_k if as_left else _held_keys(layer, held, marks, tokens - new)
        index_k = torch.cat([old, index_k], 1)
    if call.cache is not None:
        layer.held[call.cache] = Held(index_k, marks, begins, weakref.ref(key), _version(key))
    rule = layer.rule
    return m.index_select(
        _packed(index_q, mask, 2, index_q.dtype), _packed(index_k, mask, 0, index_k.dtype), rule.top_k,
        block_size=rule.block_size, forced_first=rule.forced_first,
        forced_local=rule.forced_local, **lengths)


def _begins(mask: Spans, device) -> Tensor:
    """Where the rows begin, [batch, 1]."""
    return torch.tensor([[span[0]] for span in mask.rows], device=device)


def _turns_of(branch, mask: Spans, new: int, device) -> tuple:
    """Of the `new` last tokens of the rows, as nn.turn takes them."""
    if torch.compiler.is_compiling():
        at = branch.rope, new
        if at not in mask.made:
            mask.made[at] = _turns(mask, branch.frequencies, new, device)
        return mask.made[at]
    return mask.once(_known_turns, branch.rope, new, device)


def _known_turns(mask: Spans, rope: tuple, new: int, device):
    return _turns(mask, frequencies_of(rope, device), new, device)


def _turns(mask: Spans, frequencies: Tensor, new: int, device):
    positions = torch.arange(mask.keys - new, mask.keys, device=device) - mask.once(_begins, device)
    return rotation(positions.clamp(min=0), frequencies, torch.float32)


def _marks(key: Tensor, first: int, end: int) -> list[Tensor]:
    """[batch, tokens] int64, in parts, of the tokens from `first` to `end` of the keys [batch, Hkv, tokens, dh]:
    numbers that differ, all but surely, where a bit of a token's keys does."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[key.element_size()]
    weights = _mark_weights(key.shape[1], key.shape[3], key.device)
    at_once = max(1, MARKED_AT_ONCE // (key.shape[0] * weights.numel()))  # tokens
    return [(key.narrow(2, at, min(at_once, end - at)).view(kind) * weights).sum((1, 3))
            for at in range(first, end, at_once)]


@functools.cache
def _mark_weights(heads: int, dim: int, device) -> Tensor:
    """[Hkv, 1, dh], odd."""
    draw = torch.Generator().manual_seed(0)
    return (torch.randint(2 ** 62, (heads, 1, dim), generator=draw) | 1).to(device)


def _held_keys(layer: Layer, held: Held | None, marks: Tensor | None, length: int) -> Tensor:
    """The index keys of the first `length` tokens of the rows with these marks [batch, 1 + tokens], of where a
    row begins and of its keys, from the last call with their cache, whose rows may have been reordered, chosen,
    repeated or cut since."""
    if held is not None:
        known = held.marks
        same = ((marks[:, None, :1 + length] == known[None, :, :1 + length]).all(-1) if known.shape[1] > length
                else marks.new_zeros((len(marks), 1), dtype=torch.bool))
        if same.any(1).all():
            return held.index_k[same.long().argmax(1), :length]
    raise InputError(f"{NAME}: layer {layer.number}: the cache is not as this layer left it: it holds "
                     "keys that the Index Branch has not seen in this cache, or that were changed "
                     "since, as a copy of the cache does, or one of reduced precision")
