#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Speed of whole models of transformers with random weights as a user serves them: MSA with its cache beside dense attention,
eager, compiled and in CUDA graphs. msalab with the cuda backend and transformers must be importable.
usage: time_serve.py RECORD [--rows REGEX] [--seconds S] [--profile DIR] [--smoke] [--commit SHA]

A row is SHAPE-LAYERS/WORK/CONTEXT/BATCH/ARM, as 8b-4/decode/32K/1/msa-compiled. Work: prefill of the context without a
cache, or decode, the next token behind a cache that holds the context (random keys). Arms:
  flash, cudnn        scaled_dot_product_attention's kernels; decode: behind a DynamicCache
  *-compiled          prefill: torch.compile of the model
  static-compiled     decode: StaticCache, the whole step under torch.compile(mode="reduce-overhead")
  static-replayed     likewise under torch.compile(), captured in a CUDA graph of the caller's, which the host launches at once
  flash-graph         decode: a CUDA graph of the eager step over keys of one length; right for one token alone, so
                      nobody can have it. Not compiled: where the host and small kernels count, static-replayed is faster
  flash-replayed      the same compiled: what dense attention could reach at best
  *-graph             prefill: a CUDA graph of the eager pass
  *-causal            prefill: compiled, in a CUDA graph, with the cache that generate() makes. Without a cache transformers
                      does not know there that no documents are packed, and masks N x N: the other dense prefills that
                      are compiled or in a graph take that mask
  msa, msa-compiled   prefill: eager, torch.compile(fullgraph=True)
  *-replayed          prefill: as -compiled, captured in a CUDA graph
  msa                 decode: msalab.transformers.Cache that grows, eager
  msa-static          decode: of fixed capacity, eager
  msa-graph           decode: of fixed capacity, a CUDA graph of the eager step
  msa-compiled        decode: of fixed capacity, torch.compile(fullgraph=True, mode="reduce-overhead")
  msa-replayed        as static-replayed
  msa-autotune        likewise with mode="max-autotune"
  msa-int8-*          with index queries and keys in int8
generate: tokens a second of generate() itself: dynamic, static (dense), msa, msa-static.

ms: median of steps between two synchronisations; flow_ms: of steps that follow each other without one, a step.
floor_ms: by what must be read at 3.03 TB/s, or multiplied at 786 TFLOP/s (MSA: selected keys and all index keys).
What fails has its error there. RECORD is written after each row; rows that it has are not measured again."""

import argparse
import cProfile
import io
import pstats
import re
import statistics
import sys
import tempfile
import time
import traceback
from argparse import Namespace
from pathlib import Path

import torch
import transformers
from record import COMMIT, ERROR, PEAK_BYTES, Record, number, spaced, texts
from time_model import LARGE, SMALL, TINY, OPTIONS, attempted, commit, lines_of
from timer import step_ms, synchronize
from torch.nn.attention import SDPBackend, sdpa_kernel

from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

import msalab.transformers as mt
from msalab.capture import fitted
from msalab.report import Shape
from msalab.results import Column
from msalab.selectors import Rule
from msalab.training import attention as attentions

QWEN = {"hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
        "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True}
A3B = {"model_type": "qwen3_moe", "hidden_size": 2048, "moe_intermediate_size": 768, "num_experts": 128,
       "num_experts_per_tok": 8, "norm_topk_prob": True, "num_hidden_layers": 48, "num_attention_heads": 32,
       "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": False,
       "experts_implementation": "grouped_mm"}  # without the host
MEASURED = [Shape("measured", "models, each with an attention and a cache", 1, {
    "row": Column("text", "", "shape and layers, work, context, batch, attention"),
    "ms": number("ms", "median of runs_ms; of generate, of a token"),
    "flow_ms": number("ms", "of a step, of steps that follow each other without a synchronisation"),
    "first_s": number("s", "time of the first three steps"),
    "floor_ms": number("ms", "by what must be read at 3.03 TB/s, or multiplied at 786 TFLOP/s; 0: not known"),
    "share": number("1", "floor_ms relative to ms or flow_ms, whichever is less"),
    "runs_ms": texts("ms", "time of each run", "it failed, or was generate"), "peak_bytes": PEAK_BYTES,
    "commit": COMMIT, "took_s": number("s", "not recorded, 0"), "error": ERROR})]
SHAPES = {"small": SMALL, "qwen": QWEN, "8b": LARGE, "a3b": A3B, "tiny": TINY}
BANDWIDTH, FLOPS = 3.03e12, 786e12
TOP_K, BLOCK, INDEX = 16, {"small": 64, "qwen": 64, "8b": 128, "a3b": 128, "tiny": 64}, 64
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
STEPS, SPARE = 24, 192
ROWS = """
8b-4/decode/8K/1: msa-replayed msa-compiled flash-graph flash-replayed static-replayed msa flash static-compiled msa-static msa-graph
8b-4/decode/128K/1: msa-replayed msa-compiled flash-graph flash-replayed msa flash static-replayed msa-static msa-graph
8b-4/prefill/8K/1: msa-compiled cudnn-causal flash-causal cudnn-graph cudnn-compiled cudnn flash msa
8b-4/prefill/32K/1: msa-compiled cudnn-causal cudnn-compiled cudnn flash msa
8b-4/prefill/128K/1: msa-compiled cudnn-causal cudnn cudnn-compiled msa
8b-4/decode/1M/1: msa-replayed flash-graph flash-replayed flash msa-compiled
8b-32/decode/128K/1: msa-replayed flash-graph flash-replayed flash msa-compiled
8b-4/decode/32K/1: msa-replayed flash-graph flash-replayed msa flash msa-compiled
small-30/prefill/8K/1: msa-replayed cudnn-causal flash-causal cudnn-graph flash-graph cudnn-replayed msa-compiled cudnn-compiled msa flash cudnn
small-30/decode/8K/1: msa-replayed flash-graph flash-replayed static-replayed msa flash msa-compiled static-compiled
8b-4/decode/8K/8: msa-graph flash-graph msa-replayed flash-replayed
8b-4/decode/32K/8: msa-graph flash-graph msa-replayed flash-replayed msa flash
8b-4/decode/128K/8: msa-graph flash-graph msa-replayed flash-replayed
small-30/decode/8K/8: msa-graph flash-graph msa-replayed flash-replayed
qwen-24/decode/32K/8: msa-graph flash-graph msa-replayed flash-replayed
a3b-4/decode/8K/1: msa-graph flash-graph msa-replayed flash-replayed
a3b-4/decode/32K/1: msa-graph flash-graph msa-replayed flash-replayed
a3b-4/decode/128K/1: msa-graph flash-graph msa-replayed flash-replayed
8b-4/generate/8K/1: dynamic msa static msa-static
8b-4/decode/8K/1: msa-autotune
8b-4/decode/128K/1: msa-int8-replayed
8b-4/decode/1M/1: msa-int8-replayed
8b-4/prefill/128K/1: msa-int8-compiled
qwen-24/decode/32K/1: msa-graph flash-graph flash-replayed flash msa msa-replayed static-replayed msa-compiled static-compiled
qwen-24/prefill/32K/1: msa cudnn flash
"""


def count_of(text: str) -> int:
    return int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] if text[-1] in "KM" else int(text)


def rows_of(smoke: bool) -> list[str]:
    names = [f"{row}/{arm}" for row, arms in (line.split(": ") for line in ROWS.strip().splitlines())
             for arm in arms.split()]
    if smoke:
        names = list(dict.fromkeys(re.sub("^[^/]*/([a-z]*)/[^/]*", r"tiny-2/\1/512", name) for name in names))
    return names


def floor_of(model, work: str, context: int, batch: int, sparse: bool, block: int) -> float:
    """Milliseconds."""
    c = model.config
    at_once = 1 if work == "prefill" else batch
    parameters = sum(p.numel() * share_read(name, c, at_once) for name, p in model.model.layers.named_parameters())
    head, width = c.vocab_size * c.hidden_size, c.num_key_value_heads * c.head_dim
    layers, heads = c.num_hidden_layers, c.num_attention_heads * c.head_dim
    seen = min(context, TOP_K * block)
    if work == "prefill":
        pairs = context * (context + 1) / 2
        attention = 4 * heads * (min(pairs, context * seen) if sparse else pairs)
        index = 2 * c.num_key_value_heads * INDEX * pairs + 2 * context * c.hidden_size * INDEX * (
            c.num_key_value_heads + 1) if sparse else 0
        return 1e3 * batch * (2 * parameters * context + layers * (attention + index)) / FLOPS
    keys = 2 * 2 * width * (seen if sparse else context) + (2 * INDEX * context if sparse else 0)
    return 1e3 * (2 * (parameters + head) + batch * layers * keys) / BANDWIDTH


def share_read(name: str, config, tokens: int) -> float:
    """Of a parameter, for so many tokens that choose different experts."""
    return min(1, tokens * config.num_experts_per_tok / config.num_experts) if ".experts." in name else 1


def config_of(name: str) -> dict:
    """The configuration of a shape with a number of layers: 8b-4 is shape 8b with 4 layers, and their share of the
    vocabulary."""
    shape, layers = name.split("-")
    sizes, layers = dict(SHAPES[shape]), int(layers)
    if not sizes["tie_word_embeddings"]:
        sizes["vocab_size"] = sizes["vocab_size"] * layers // sizes["num_hidden_layers"] // 128 * 128
    return {"model_type": "llama"} | sizes | {"num_hidden_layers": layers}


def shape_of(name: str) -> dict:
    """The entry of a record for this shape and number of layers."""
    return {name: {"config": config_of(name), "block_size": BLOCK[name.split("-")[0]], "top_k": TOP_K,
                   "index_dim": INDEX}}


def make_model(name: str, context: int):
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(DEVICE):
            return transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(
                **config_of(name), max_position_embeddings=context + SPARE, rope_theta=1e5, eos_token_id=None)).eval()
    finally:
        torch.set_default_dtype(torch.float32)


def use_msa(model, block: int, index_keys: str | None):
    rule, options = Rule(block, TOP_K), Namespace(**vars(OPTIONS) | {"attention": "msa"})
    forms = attentions.forms_of(model, attentions.trainable(model, options)[-1], options)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / fitted.TRAINED).write_bytes(fitted.packed(forms, vars(rule), folder))
        mt.configure(model, indexer=folder, index_keys=index_keys)
    model.set_attn_implementation(mt.NAME)


class OneLength(transformers.StaticCache):
    """For a graph of one step: the keys of one length."""

    is_compileable = False

    def get_mask_sizes(self, query_length, layer_idx=0):
        return self.length + query_length, 0

    def get_seq_length(self, layer_idx=0):
        return self.length

    get_query_offset = get_seq_length

    def update(self, key, value, number, *_, **__):
        layer = self.layers[number]
        for held, new in ((layer.keys, key), (layer.values, value)):
            held[:, :, self.length:self.length + 1] = new
        return layer.keys[:, :, :self.length + 1], layer.values[:, :, :self.length + 1]


def filled(model, cache, context: int, batch: int):
    """The cache with random keys, as if it had seen so many tokens."""
    c = model.config
    if isinstance(cache, mt.Cache):
        one = torch.zeros((batch, 1), dtype=torch.long, device=DEVICE)
        model(one, past_key_values=cache)
        rows = cache.rows
        for layer in cache.layers:
            if rows.fixed:
                layer.seen = 0
            else:
                layer.seen = context
                layer.grow(context)
            for name in ("keys", "values", "index_keys"):
                pool = getattr(layer, name)[:, :context]
                if pool.is_floating_point():
                    pool.normal_()
                else:
                    pool.random_(-127, 128)
        if rows.fixed:
            rows.at = None
            rows.seen.fill_(context)
            rows.lengths.fill_(context)
        return cache
    shape = (batch, c.num_key_value_heads, 1, c.head_dim)
    for layer in cache.layers:
        new = torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE)
        layer.lazy_initialization(new, new)
        if isinstance(layer, transformers.cache_utils.StaticLayer):
            layer.keys[:, :, :context].normal_()
            layer.values[:, :, :context].normal_()
            if isinstance(getattr(layer, "cumulative_length", None), torch.Tensor):
                layer.cumulative_length.fill_(context)
        else:
            layer.keys, layer.values = (torch.randn((*shape[:2], context, shape[3]), dtype=torch.bfloat16, device=DEVICE)
                                        for _ in range(2))
    return cache


def captured(step, token):
    """step(token) in a CUDA graph. Its stream waits for what fills the cache and the token on the current one."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step(token)
    synchronize(DEVICE)
    with torch.cuda.graph(graph, stream=stream):
        out = step(token)

    def replay(_):
        graph.replay()
        return out
    return replay


def decode_call(model, context: int, batch: int, arm: str):
    config, most = model.config, context + SPARE
    if arm.startswith("msa"):
        cache = mt.Cache(model, None if arm == "msa" else most)
    elif arm.startswith("static"):
        cache = transformers.StaticCache(config=config, max_cache_len=most)
    elif arm in ("flash-graph", "flash-replayed"):
        cache = OneLength(config=config, max_cache_len=most)
        cache.length = context
        AttentionInterface.register("one_length", ALL_ATTENTION_FUNCTIONS["sdpa"])
        AttentionMaskInterface.register("one_length", lambda *_, **__: None)
        model.set_attn_implementation("one_length")
    else:
        cache = transformers.DynamicCache(config=config)
    filled(model, cache, context, batch)

    def step(token):
        return model(token, past_key_values=cache, use_cache=True).logits[:, -1].argmax(-1, keepdim=True)
    token = torch.zeros((batch, 1), dtype=torch.long, device=DEVICE)
    if arm.endswith(("graph", "replayed")):
        if arm.endswith("replayed"):
            step = torch.compile(step, fullgraph=arm.startswith("msa"), dynamic=False)
        replay = captured(step, token)
        return lambda: token.copy_(replay(token))
    if arm.endswith(("compiled", "autotune")):
        mode = "max-autotune" if arm.endswith("autotune") else "reduce-overhead"
        compiled = torch.compile(step, fullgraph=arm.startswith("msa"), dynamic=False, mode=mode)

        def call():
            torch.compiler.cudagraph_mark_step_begin()
            return token.copy_(compiled(token))
        return call
    return lambda: token.copy_(step(token))


def prefill_call(model, context: int, batch: int, arm: str):
    ids = torch.randint(model.config.vocab_size, (batch, context), device=DEVICE)
    call = model
    if arm.endswith(("compiled", "replayed", "causal")):
        call = torch.compile(model, fullgraph=arm.startswith("msa"), dynamic=False)

    def step(tokens):
        return call(tokens, use_cache=arm.endswith("causal"), logits_to_keep=1).logits.argmax(-1)
    if arm.endswith(("graph", "replayed", "causal")):
        replay = captured(step, ids)
        return lambda: replay(ids)
    return lambda: step(ids)


def generate_call(model, context: int, batch: int, arm: str):
    ids = torch.randint(model.config.vocab_size, (batch, context), device=DEVICE)
    how = {"cache_implementation": "static"} if arm.endswith("static") else {}

    def call(new):
        model.generate(ids, max_new_tokens=new, do_sample=False, **how)
    return call


@torch.no_grad()
def measure(name: str, profile: Path | None) -> dict:
    shape, work, context, batch, arm = name.split("/")
    context, batch, sparse, block = count_of(context), int(batch), arm.startswith("msa"), BLOCK[shape.split("-")[0]]
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    model = make_model(shape, context)
    if sparse:
        use_msa(model, block, "int8" if "int8" in arm else None)
    else:
        model.set_attn_implementation("sdpa")
    kernel = BACKENDS.get(arm.split("-")[0])
    with sdpa_kernel(kernel) if kernel else sdpa_kernel(list(BACKENDS.values()) + [
            SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
        if work == "generate":
            return generated(generate_call(model, context, batch, arm))
        call = {"decode": decode_call, "prefill": prefill_call}[work](model, context, batch, arm)
        first = 3e-3 * step_ms(call, DEVICE, 1, calls=3)[0]
        if profile:
            return profiled(call, name, profile)
        steps = STEPS if work == "decode" else 3 if context >= 1 << 17 else 7
        found = step_ms(call, DEVICE, steps)
        flow = step_ms(call, DEVICE, 1, calls=steps)[0]
    ms, floor = statistics.median(found), floor_of(model, work, context, batch, sparse, block)
    return {"ms": ms, "flow_ms": flow, "first_s": first, "floor_ms": floor, "share": floor / min(ms, flow), "runs_ms": spaced(found),
            "peak_bytes": (torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0)}


def generated(call) -> dict:
    """Tokens a second behind the prompt: of 96 new tokens less 32."""
    times = {}
    for new in (32, 96, 32, 96):
        times[new] = 1e-3 * step_ms(lambda: call(new), DEVICE, 1)[0]
    return {"ms": 1e3 * (times[96] - times[32]) / 64, "flow_ms": 1e3 * (times[96] - times[32]) / 64, "first_s": 0, "floor_ms": 0,
            "share": 0, "peak_bytes": (torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0)}


def profiled(call, name: str, folder: Path) -> dict:
    calls = cProfile.Profile()
    with calls:
        for _ in range(8):
            call()
    text = io.StringIO()
    pstats.Stats(calls, stream=text).sort_stats("tottime").print_stats(30)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU,
                                            torch.profiler.ProfilerActivity.CUDA]) as seen:
        for _ in range(2):
            call()
        synchronize(DEVICE)
    lines = [name + ", 2 steps", *lines_of(seen.key_averages()), *text.getvalue().splitlines()]
    with open(folder / "profiles.txt", "a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n\n")
    print("\n".join(lines[:16]), flush=True)
    return {"ms": 0, "flow_ms": 0, "first_s": 0, "floor_ms": 0, "share": 0}


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--rows", default=".")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--profile", type=Path, metavar="DIR")
    parser.add_argument("--commit", default=commit())
    parser.add_argument("--smoke", action="store_true")
    o = parser.parse_args(arguments)
    began = time.monotonic()
    mt.register()
    torch._dynamo.config.cache_size_limit = 64
    record = Record(o.record, "bench/time_serve.py", "Whole models as a user serves them", MEASURED, {
        "torch": torch.__version__, "transformers": transformers.__version__,
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU", "shapes": {}})
    for name in filter(re.compile(o.rows).search, rows_of(o.smoke)):
        if time.monotonic() - began > o.seconds:
            print(f"{name}: no time left", flush=True)
            continue
        if not o.profile and not (record.find("measured", row=name) or {"error": "there is none"}).get("error"):
            continue

        def work(name=name):
            try:
                return measure(name, o.profile)
            except Exception:
                traceback.print_exc()
                raise
        found = attempted(work) | {"commit": o.commit, "took_s": 0}
        if not o.profile:
            record.run["shapes"] |= shape_of(name.split("/")[0])
            record.put("measured", {"row": name} | found)
        line = found.get("error") or (f"{found['ms']:9.3f} ms  flow {found['flow_ms']:9.3f}  floor {found['floor_ms']:8.3f} "
                                      f"({found['share']:.0%})  first {found['first_s']:.0f} s  "
                                      f"{found.get('peak_bytes', 0) / 2**30:.1f} GiB")
        print(f"{name:34} {line[:300]}", flush=True)
    synchronize(DEVICE)


if __name__ == "__main__":
    sys.exit(main())
