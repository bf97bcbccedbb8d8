# SPDX-License-Identifier: MIT
"""msalab crossover MODEL: from which context on does MSA pay in a whole model, in prefill, decode and training?

A model is its configuration: no weight is read. Of each layer the products with weights, the reading of weights and
keys, attention and what an Index Branch adds are priced by rates that were measured on the GPU (RATES), one after the
other, at batch 1 and in bfloat16. MSA pays from where it is at least 5 % faster, by convention: prices
are right within 15 % where something was measured. Decode and small models run in a CUDA graph, so what the host adds counts for neither side. MSA
runs compiled. Dense attention runs in the fastest of the ways that were measured: in decode FlashAttention in a compiled
step over keys of one length, which no cache that transformers compiles reaches; in prefill cuDNN without a compiler,
with which it is slower; in training cuDNN compiled. Training keeps no activations within a layer, and has no optimizer.
Layers with a window, with the keys of another layer or without attention stay as they are; of the last, what passes from
token to token beside the weights is not counted."""

from __future__ import annotations

import functools
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from . import results
from .arguments import INDEX_DIM, CommandLine
from .ending import Refusal, ended
from .rule import Rule

WORK = ("prefill", "decode", "training")
SELECTS, WINDOW, SHARES, OTHER = "attention", "window", "shared keys", "no attention"
BYTES = 2  # of an element
CONTEXTS = [1 << n for n in range(10, 21)]
PAYS = 1.05  # times as fast


@dataclass(frozen=True)
class Rates:
    """Of a GPU: FLOP/s and byte/s that the parts of whole models reach, and seconds of a layer."""

    products: float  # of weights of infinitely many channels; of d channels d / (d + half)
    half: float
    read: float  # weights in decode
    copy: float
    dense: float  # attention over all keys
    dense_grad: float
    index: float
    sparse: float
    narrow: float  # of that with heads of 64 channels, the share that is reached
    sparse_grad: float
    passes: float  # numbers of a token's activations that a layer reads or writes, of its channels
    step: float  # seconds of a layer's decode beside reading, the same of MSA and dense attention
    experts_step: float  # seconds of choosing a token's experts in a layer's decode


# Fitted to the records of data/bench (test_crossover.py), from the rates of single kernels. No record is of decode on an
# H100: what it reads and copies is the H200's by the ratio of their memories.
_H200 = Rates(products=752e12, half=235, read=3.64e12, copy=4.27e12, dense=509e12, dense_grad=570e12, index=583e12,
              sparse=214e12, narrow=0.33, sparse_grad=284e12, passes=16.1, step=53.1e-6, experts_step=58e-6)
RATES = {"h100": replace(_H200, read=2.58e12, copy=3.03e12), "h200": _H200}


@dataclass(frozen=True)
class Layer:
    kind: str
    query_heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    window: int | None = None

    def pairs(self, context: int, most: int | None) -> float:
        """(query, key) pairs of a causal sequence whose queries see `most` keys, or all."""
        most = min(context, most or context)
        return context * most - most * (most - 1) / 2


@dataclass(frozen=True)
class Model:
    layers: tuple
    parameters: float  # of the layers, those that a token uses
    head: float  # of the language head
    width: int  # numbers of a token in a layer's activations: hidden and intermediate ones
    hidden: int
    vocabulary: int
    routed: bool = False  # to experts


@dataclass(frozen=True)
class Msa:
    rule: Rule
    index_dim: int = INDEX_DIM


def seconds(model: Model, work: str, context: int, rates: Rates, msa: Msa | None, *, batch: int = 1,
            recomputes: bool = True, learns: bool = False) -> float:
    """Of dense attention, or with msa. recomputes: training keeps no activations within a layer; learns: an optimizer
    takes its step."""
    if work == "decode":
        return _decode(model, context, rates, msa, batch)
    passes = 1 if work == "prefill" else 4 if recomputes else 3
    tokens, forward = batch * context, 2 if work == "training" and recomputes else 1
    rate = rates.products * model.hidden / (model.hidden + rates.half)
    found = 2 * model.parameters * tokens * passes / rate
    found += passes * tokens * BYTES * rates.passes * model.width * len(model.layers) / rates.copy
    for layer in model.layers:
        found += batch * _attention(layer, context, rates, msa, forward, work == "training")
    if work == "training":
        found += 6 * model.head * tokens / rate + 20 * model.vocabulary * tokens / rates.copy
        found += 32 * (model.parameters + model.head) / rates.copy if learns else 0
    return found


def _attention(layer: Layer, context: int, rates: Rates, msa: Msa | None, forward: int, learns: bool) -> float:
    if layer.kind == OTHER:
        return 0
    of_pair = 4 * layer.query_heads * layer.head_dim
    share = 1 if layer.head_dim >= 128 else rates.narrow
    if msa is None or layer.kind != SELECTS:
        flops = of_pair * layer.pairs(context, layer.window)
        return flops * (forward / rates.dense + (2.5 / rates.dense_grad if learns else 0))
    kept = layer.pairs(context, msa.rule.tokens)
    index = 2 * layer.kv_heads * msa.index_dim * layer.pairs(context, None) / rates.index
    loss = kept * (2 * layer.query_heads * layer.head_dim + 6 * layer.kv_heads * msa.index_dim)
    found = forward * (index + of_pair * kept / share / rates.sparse)
    if learns:
        found += (2.5 * of_pair * kept + loss) / rates.sparse_grad
    return found


def _decode(model: Model, context: int, rates: Rates, msa: Msa | None, batch: int) -> float:
    found = BYTES * (model.parameters + model.head) / rates.read
    found += len(model.layers) * (rates.step + (rates.experts_step if model.routed else 0))
    for layer in model.layers:
        sparse = msa is not None and layer.kind == SELECTS
        seen = min(context, (msa.rule.tokens if sparse else layer.window) or context)
        keys = 2 * layer.kv_heads * layer.head_dim * seen + (msa.index_dim * context if sparse else 0)
        found += batch * BYTES * keys / rates.copy
    return found


def crossover(model: Model, work: str, rates: Rates, msa: Msa) -> int | None:
    """The least of CONTEXTS from which on MSA is PAYS times as fast; None: it is at none."""
    found = None
    for context in reversed(CONTEXTS):
        if PAYS * seconds(model, work, context, rates, msa) > seconds(model, work, context, rates, None):
            break
        found = context
    return found


def read(name: str) -> Model:
    """Of the configuration of a folder or of a model of the Hub. Refusal where a layer cannot be priced."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from .capture.gguf import place_of

    place, how = place_of(name)
    config = AutoConfig.from_pretrained(place, **how)
    with torch.device("meta"):
        return model_of(AutoModelForCausalLM.from_config(config))


def model_of(model) -> Model:
    from .capture.decoder import decoder_layers

    config = model.config.get_text_config(decoder=True)
    parts = decoder_layers(model)
    experts = [getattr(config, key, None) for key in ("num_experts", "num_local_experts", "n_routed_experts")]
    count, chosen = next(filter(None, experts), None), getattr(config, "num_experts_per_tok", None)
    used, routed = 0.0, False
    for key, one in parts.named_parameters():
        of_expert = ".experts." in key
        routed |= of_expert
        if of_expert and not (count and chosen):
            raise Refusal(f"{type(model).__name__}: its configuration does not say how many experts a token uses")
        used += one.numel() * (chosen / count if of_expert else 1)
    inner = config.intermediate_size
    inner = getattr(config, "moe_intermediate_size", inner) if routed else inner
    inner = sum(inner) / len(inner) if isinstance(inner, (list, tuple)) else inner * (chosen if routed else 1)
    hidden, vocabulary = config.hidden_size, config.vocab_size
    return Model(tuple(_layer(number, part) for number, part in enumerate(parts)), used, vocabulary * hidden,
                 hidden + inner, hidden, vocabulary, routed)


def _layer(number: int, part) -> Layer:
    from .capture.decoder import attention_in
    from .capture.other_kinds import other_kind

    module = attention_in(part)
    if module is None:
        return Layer(OTHER)
    if other_kind(module):
        raise Refusal(f"layer {number}: {other_kind(module)}")
    config = module.config
    types = getattr(config, "layer_types", None)
    kind = types[number] if types else "full_attention"
    if kind not in ("full_attention", "sliding_attention", "attention"):
        raise Refusal(f"layer {number} is of type {kind}, which is not priced")
    window = None if kind == "full_attention" and types else getattr(module, "sliding_window", None) or getattr(
        config, "sliding_window", None)
    shares = getattr(module, "is_kv_shared_layer", False)
    heads = config.num_attention_heads
    return Layer(SHARES if shares else WINDOW if window else SELECTS, heads, heads // module.num_key_value_groups,
                 module.head_dim, window)


def table(model: Model, rates: Rates, msa: Msa) -> list[dict]:
    """A row of each work and context: milliseconds of dense attention and of MSA."""
    return [{"work": work, "context": context, "dense_ms": 1e3 * seconds(model, work, context, rates, None),
             "msa_ms": 1e3 * seconds(model, work, context, rates, msa)} for work in WORK for context in CONTEXTS]


def text_of(context: int | None) -> str:
    if context is None:
        return "at no context up to 1M"
    return f"from {context >> 10}K on" if context < 1 << 20 else "from 1M on"


# What was measured.

# Arms of bench/time_serve.py. Dense prefills that mask N x N, as transformers does in a graph without a cache, are none.
COUNTED = {"decode": ("msa-replayed", "flash-replayed"),
           "prefill": ("msa-compiled", "msa-replayed", "flash", "cudnn", "flash-causal", "cudnn-causal")}
EAGER = ("flash", "cudnn")
OF_THE_HOST = 1024  # models narrower than this take the host longer than the GPU, except in a graph


@dataclass(frozen=True)
class Measured:
    """A row of a record, and what the model of costs says of it."""

    record: str
    name: str
    ms: float
    predicted_ms: float
    hidden: int
    query_heads: int


@functools.cache
def shape_model(shape: str) -> Model:
    """Of a model with these entries of its configuration, as JSON: a Llama unless they say. Its layers are alike."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"model_type": "llama"} | json.loads(shape)
    with torch.device("meta"):
        one = model_of(AutoModelForCausalLM.from_config(AutoConfig.for_model(**sizes | {"num_hidden_layers": 1})))
    count = sizes["num_hidden_layers"]
    return replace(one, layers=one.layers * count, parameters=one.parameters * count)


def measured(folder: Path) -> list[Measured]:
    """Of the records serve-*.json (bench/time_serve.py) and model-*.json (bench/time_model.py) in the folder: training and
    MSA compiled, dense prefill without a compiler, decode in a graph, on a GPU whose rates are here; of small models what
    ran in a graph. Of the ways to run a case the fastest."""
    found = {}
    if not folder.is_dir():
        raise Refusal(f"{folder}: no such folder")
    for path in sorted([*folder.glob("serve-*.json"), *folder.glob("model-*.json")]):
        record = results.open(path)
        gpu = next((name for name in RATES if name in record.run["device"].lower()), None)
        rows = _served(record) if record.program == "bench/time_serve.py" else _trained(record)
        for name, shape, work, context, msa, how, ms in rows if gpu else ():
            arm = f"{msa.rule.top_k} blocks" if msa else "dense"
            case = path.name, name.rpartition("/")[0], arm
            if case in found and found[case].ms <= ms:
                continue
            model = shape_model(json.dumps(shape))
            said = 1e3 * seconds(model, work, context, RATES[gpu], msa, **how)
            found[case] = Measured(path.name, name, ms, said, model.hidden, model.layers[0].query_heads)
    return list(found.values())


def _served(record: results.Report):
    for row in record["measured"].records():
        name = row["row"]
        shape, work, context, batch, arm = name.split("/")
        if row["error"] or arm not in COUNTED.get(work, ()):
            continue
        of = record.run["shapes"][shape]
        if of["config"]["hidden_size"] < OF_THE_HOST and arm in EAGER:
            continue
        tokens = int(context[:-1]) << {"K": 10, "M": 20}[context[-1]]
        msa = Msa(Rule(of["block_size"], of["top_k"]), of["index_dim"]) if arm.startswith("msa") else None
        yield name, of["config"], work, tokens, msa, {"batch": int(batch)}, row["ms"]


def _trained(record: results.Report):
    for row in record["measured"].records():
        case, arm = record.run["cases"].get(row["case"]), row["arm"]
        if row["error"] or not row["compiled"] or case is None or row["case"] in COUNTED or arm == "none":
            continue
        if case["shape"]["hidden_size"] < OF_THE_HOST and not case.get("cuda_graph"):
            continue
        top_k = arm.removeprefix("msa-")
        msa = Msa(Rule(case["block_size"], int(top_k))) if top_k != arm else None
        how = {"batch": case["rows"], "recomputes": not case["learns"], "learns": case["learns"]}
        yield (f"training/{row['case']}/{row['layer_count']} layers/{arm}",
               case["shape"] | {"num_hidden_layers": row["layer_count"]}, "training", case["context"], msa, how, row["ms"])


def describe(model: Model) -> str:
    kinds = Counter(layer.kind if layer.window is None else f"{layer.kind} of {layer.window} tokens"
                    for layer in model.layers)
    return (f"{len(model.layers)} layers ({', '.join(f'{count}: {kind}' for kind, count in kinds.items())}), "
            f"{(model.parameters + model.head) / 1e9:.3g}e9 weights that a token uses")


def print_answer(answer: dict, out):
    print(f"{answer['model']}: {answer['what']}\n{answer['gpu']}, bfloat16, batch 1, {answer['rule']}\n", file=out)
    for work, context in answer["pays"].items():
        print(f"{work}: MSA is at least {PAYS - 1:.0%} faster {text_of(context)}", file=out)
    print(f"\n{'work':<10}{'context':>9}{'dense ms':>12}{'MSA ms':>12}{'dense / MSA':>13}", file=out)
    for row in answer["table"]:
        print(f"{row['work']:<10}{row['context'] >> 10:>8}K{row['dense_ms']:>12.4g}{row['msa_ms']:>12.4g}"
              f"{row['dense_ms'] / row['msa_ms']:>13.2f}", file=out)
    if answer["measured"] is not None:
        print(f"\nmeasured of layers of this width: {'nothing' if not answer['measured'] else ''}", file=out)
        for row in answer["measured"]:
            print(f"  {row['record']:<24}{row['name']:<38}{row['ms']:>10.4g} ms, the model of costs "
                  f"{row['predicted_ms']:.4g} ({row['predicted_ms'] / row['ms'] - 1:+.0%})", file=out)


def work(options):
    model, rates = read(options.model), RATES[options.hardware]
    msa = Msa(Rule(options.block_size, options.top_k), options.index_dim)
    rows = None if options.records is None else [
        asdict(row) for row in measured(options.records) if (row.hidden, row.query_heads) in
        {(model.hidden, layer.query_heads) for layer in model.layers}]
    if not any(layer.kind == SELECTS for layer in model.layers):
        raise Refusal(f"{options.model}: no layer is left to select: {describe(model)}")
    answer = {"model": options.model, "what": describe(model), "gpu": options.hardware,
              "rule": f"{msa.rule.top_k} blocks of {msa.rule.block_size}, Index Branch of {msa.index_dim} channels",
              "pays": {of: crossover(model, of, rates, msa) for of in WORK}, "table": table(model, rates, msa),
              "measured": rows}
    if options.json:
        print(json.dumps(answer, indent=1))
    else:
        print_answer(answer, sys.stdout)


def main(arguments=None) -> int:
    parser = CommandLine(prog="msalab crossover", description=__doc__,
                         example="msalab crossover meta-llama/Llama-3.1-8B --hardware h100")
    parser.add_argument("model", metavar="MODEL", help="a folder with a config.json, or a model's id")
    parser.add_argument("--hardware", choices=tuple(RATES), default="h100", help="whose rates (h100)")
    parser.add_argument("--block-size", type=int, default=Rule.block_size, help="default: %(default)s")
    parser.add_argument("--top-k", type=int, default=Rule.top_k, help="default: %(default)s")
    parser.add_argument("--index-dim", type=int, default=Msa.index_dim, help="channels of the Index Branch; default: "
                        "%(default)s")
    parser.add_argument("--records", type=Path, metavar="FOLDER", help="what was measured is shown beside it: records "
                        "of bench/, as data/bench has them")
    parser.add_argument("--json", action="store_true", help="the answer as JSON")
    options = parser.parse_args(arguments)
    return ended(lambda: work(options), options)
