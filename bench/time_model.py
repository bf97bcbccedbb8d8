#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Speed of MSA where it is used: whole models of transformers with random weights, beside the same models with
PyTorch's attention over all keys. msalab and transformers must be importable; on a GPU with the cuda backend.
usage: time_model.py RECORD [--cases prefill,decode,8k,32k,128k] [--arms flash,msa-8] [--layers 4] [--seconds S]
                     [--compiled-only] [--cuda-graph] [--profile DIR] [--commit SHA] [--smoke]

prefill, decode: SmolLM2-135M's shape, 8192 tokens without a cache, and the next token behind them.
8k: tokens per second of training that shape, two rows of 8192 tokens, AdamW included.
32k, 128k: of --layers layers of Llama 3 8B's shape, one row, forward and backward pass with no activations kept
within a layer; the vocabulary is that model's share of so many layers.
Training is `msalab train`'s: its learner, mixed precision in one process. Compiled is as by its --compile;
prefill, 32k and 128k have msalab's attentions between the graphs of a layer. Nothing compiled is taken from a cache, whose
keys leave out which of PyTorch's attentions an arm asks for.

Arms: msa-K (the Index Branch selects K blocks, and learns by its KL loss in training), msalab-dense, flash and cudnn
(scaled_dot_product_attention's kernels; sdpa: its own choice of them), and none, in which heads are a sum of queries,
keys and values: what the model takes without an attention.

RECORD is written after every measurement; a time that it has is not measured again. Each is the median of several runs
between two synchronisations, after three that warm up: the first compiles, and with --cuda-graph the third captures.
What fails has its error there. --seconds: none begins later. --profile DIR: instead, one run of each arm under
PyTorch's profiler; the 25 kernels that take most, and the 25 calls that take most of the host's time, are printed, and
written to DIR. The host takes longer then, since operators pass PyTorch's dispatcher and are recorded. --smoke: tiny
models."""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch._inductor.config
import transformers
from record import CASE, COMMIT, ERROR, PEAK_BYTES, Record, number, spaced, texts
from timer import step_ms, synchronize
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

import msalab.transformers
from msalab.capture import fitted
from msalab.report import Shape
from msalab.results import Column
from msalab.selectors import Rule
from msalab.training import attention as attentions
from msalab.training import learner as learners
from msalab.training.replay import Passes, why_no_graph

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
SERVED = ("prefill", "decode")  # other cases are training
DENSE = ("flash", "cudnn")  # the faster one is what MSA is compared with
SMALL = {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
         "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True}
LARGE = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
         "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False}
TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 512, "tie_word_embeddings": True}
WARM_UP, DECODED = 3, 16  # runs, the third of which captures passes of training; tokens of the measurement of decoding
SHOWN = 25  # kernels of a profile, and calls of the host
SHAPES_OF_RECORD = [Shape("measured", "models, each with an attention", 4, {
    "case": CASE, "layer_count": Column("integer", "", "layers of the model"),
    "arm": Column("text", "", "attention"), "compiled": Column("truth", "", "by torch.compile"),
    "ms": number("ms", "median of runs_ms"), "runs_ms": texts("ms", "time of each run", "it failed"),
    "first_ms": number("ms", "time of the first run, which warms up and compiles"),
    "tokens_per_second": number("1/s", "tokens of training steps alone"), "peak_bytes": PEAK_BYTES,
    "commit": COMMIT, "error": ERROR})]
OPTIONS = Namespace(dense_layers=[], indexer=None, index_dim=64, index_rotary=None, index_norm="rms", seed=0, lr=5e-5,
                    index_lr=1e-3, weight_decay=0.0)  # of msalab train


@dataclass(frozen=True)
class Case:
    """rows of `context` tokens at once; learns: with an optimizer, and with the activations of all layers."""

    shape: dict
    rows: int
    context: int
    block_size: int
    budgets: tuple
    learns: bool = False
    runs: int = 7
    cuda_graph: bool = False  # of the compiled passes of training


def cases_of(options) -> dict[str, Case]:
    share = LARGE["vocab_size"] * options.layers // LARGE["num_hidden_layers"]
    large = LARGE | {"num_hidden_layers": options.layers, "vocab_size": share // 128 * 128}
    found = {"prefill": Case(SMALL, 1, 8192, 64, (8, 16)), "decode": Case(SMALL, 1, 8192, 64, (8, 16), runs=DECODED),
             "8k": Case(SMALL, 2, 8192, 64, (8, 16), learns=True),
             "32k": Case(large, 1, 32768, 128, (16,), runs=5), "128k": Case(large, 1, 131072, 128, (16,), runs=3)}
    if options.smoke:
        found = {name: replace(case, shape=TINY, context=128, block_size=16, budgets=(2,), runs=2)
                 for name, case in found.items()}
    return {name: replace(case, cuda_graph=options.cuda_graph) for name, case in found.items()}


def attend_by_pytorch(model, kind: str, rows: int):
    """Makes every attention one of `kind`: one of BACKENDS that the caller has chosen, or "none"."""

    def attend(module, query, key, value, mask, scaling=None, **_):
        if kind == "none":
            heads = (query.unflatten(1, (key.shape[1], -1)) + (key + value)[:, :, None]).flatten(1, 2)
            return heads.transpose(1, 2), None
        q, k, v = (heads[0].unflatten(1, (rows, -1)).transpose(0, 1) for heads in (query, key, value))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=True)
        return out.transpose(1, 2).flatten(0, 1)[None], None

    AttentionInterface.register("by_pytorch", attend)
    AttentionMaskInterface.register("by_pytorch", lambda *_, **__: None)
    model.set_attn_implementation("by_pytorch")


def kernel_of(arm: str):
    return sdpa_kernel(BACKENDS[arm]) if arm in BACKENDS else nullcontext()


def make_model(case: Case, device):
    torch.manual_seed(0)
    with torch.device(device):
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(
            **case.shape, max_position_embeddings=case.context + 2 * DECODED, rope_theta=1e5))


def forms_of(model) -> dict:
    return attentions.forms_of(model, attentions.trainable(model, options_of("msa"))[-1], options_of("msa"))


def options_of(kind: str) -> Namespace:
    return Namespace(**vars(OPTIONS) | {"attention": kind})


def train_step(case: Case, arm: str, compiled: bool, group):
    """A function that takes a step of training."""
    model, kind, _, top_k = make_model(case, group.device), *arm.partition("-")
    kind = "dense" if arm == "msalab-dense" else kind
    modules, windows, _ = attentions.trainable(model, options_of(kind))
    branches = {number: attentions.branch_of(form) for number, form in forms_of(model).items()} if kind == "msa" else {}
    attention = attentions.Attention(kind if kind in attentions.KINDS else "dense",
                                     Rule(case.block_size, int(top_k) if kind == "msa" else 1), frozenset(), True)
    if kind in attentions.KINDS:
        attentions.attach(modules, windows, model, attention, branches)
    else:
        attend_by_pytorch(model, kind, case.rows)
    if not case.learns:
        learners.keep_no_activations(model, attention)
    learner = learners.Learner(model.to(group.device), attention)
    if compiled:
        learners.compile_parts(learner, case.cuda_graph)
    learners.shard(learner, group, torch.float32 if group.device.type == "cpu" else torch.bfloat16)
    optimizer = learners.make_optimizer(learner, OPTIONS) if case.learns else None
    learner.train()
    size = case.rows * case.context
    torch.manual_seed(0)
    tokens = torch.randint(case.shape["vocab_size"], (size,), device=group.device)
    positions = torch.arange(case.context, device=group.device).repeat(case.rows)
    ends = list(range(0, size + 1, case.context))

    passes = Passes(learner, graphs=case.cuda_graph and why_no_graph(learner, group.device, compiled) is None)
    share = torch.tensor(1 / size, device=group.device)

    def step():
        with kernel_of(arm):
            passes(ends, tokens, positions, tokens.roll(-1), share)
        if optimizer:
            learners.clip(optimizer, 1.0)
            optimizer.step()
        (optimizer or learner).zero_grad()

    return step


@torch.no_grad()
def serve_step(name: str, case: Case, arm: str, compiled: bool, device):
    """A function that takes the prompt in, or the next token behind it."""
    if name == "decode" and compiled:
        raise NotImplementedError("a DynamicCache knows each layer's number, so each would be compiled for itself")
    model = make_model(case, device).eval()
    kind, _, top_k = arm.partition("-")
    if kind == "msa":
        rule = Rule(case.block_size, int(top_k))
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / fitted.TRAINED).write_bytes(fitted.packed(forms_of(model), vars(rule), folder))
            msalab.transformers.configure(model, indexer=folder)
    model = model.to(torch.float32 if device.type == "cpu" else torch.bfloat16)
    model.set_attn_implementation(msalab.transformers.NAME if kind == "msa" else "sdpa")
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    tokens = torch.randint(case.shape["vocab_size"], (1, case.context), device=device)
    if compiled:
        for layer in decoder.layers:
            layer.forward = torch.compile(layer.forward)

    @torch.no_grad()
    def call(tokens, **how):
        with kernel_of(arm):
            found = decoder(input_ids=tokens, **how)
        return head(found.last_hidden_state[:, -1]).argmax(-1)[None], found

    if name == "prefill":
        return lambda: call(tokens, use_cache=False)
    token, found = call(tokens, use_cache=True)
    return lambda: call(token, past_key_values=found.past_key_values, use_cache=True)


def times_of(call, runs: int, device) -> dict:
    """Milliseconds: `ms`, the median of `runs_ms`, and those of the first call."""
    found = step_ms(call, device, WARM_UP + runs)
    return {"ms": statistics.median(found[WARM_UP:]), "runs_ms": spaced(found[WARM_UP:]), "first_ms": found[0]}


def step_of(name: str, case: Case, arm: str, compiled: bool, group):
    if name in SERVED:
        return serve_step(name, case, arm, compiled, group.device)
    return train_step(case, arm, compiled, group)


def measure(name: str, case: Case, arm: str, compiled: bool, group) -> dict:
    device = group.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    found = times_of(step_of(name, case, arm, compiled, group), case.runs, device)
    if name not in SERVED:
        found["tokens_per_second"] = case.rows * case.context / found["ms"] * 1e3
    if device.type == "cuda":
        found["peak_bytes"] = torch.cuda.max_memory_allocated()
    return found


def profile(name: str, case: Case, arm: str, compiled: bool, group) -> dict:
    step, activities = step_of(name, case, arm, compiled, group), [torch.profiler.ProfilerActivity.CPU]
    times = times_of(step, case.runs, group.device)
    if group.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as seen:
        step()
        synchronize(group.device)
    return {"lines": [f"a step takes {times['ms']:.1f} ms", *lines_of(seen.key_averages())]}


def lines_of(events) -> list[str]:
    """Kernels, if there are any, and calls of the host."""
    events = [event for event in events if not getattr(event, "is_user_annotation", False)]
    kernels = [event for event in events if str(event.device_type).endswith("CUDA")]
    calls = [event for event in events if event not in kernels]
    lines = taking_most("its kernels", kernels, lambda event: event.self_device_time_total) if kernels else []
    return lines + taking_most("calls of the host under the profiler", calls, lambda event: event.self_cpu_time_total)


def taking_most(what: str, events, spent) -> list[str]:
    """spent: the microseconds of an event."""
    total = sum(map(spent, events))
    return [f"{what}: {total / 1e3:.1f} ms"] + [
        f"{spent(event) / 1e3:9.2f} ms {spent(event) / total:6.1%} {event.count:6d} times  {event.key[:120]}"
        for event in sorted(events, key=spent, reverse=True)[:SHOWN]]


def arms_of(name: str, case: Case) -> list[str]:
    budgets = [f"msa-{budget}" for budget in case.budgets]
    return [*DENSE, *budgets] + (["sdpa"] if name in SERVED else ["msalab-dense", "none"])


def commit() -> str:
    try:
        return subprocess.run(["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True,
                              check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def open_record(path: Path, made_of: str, device) -> Record:
    about = {"torch": torch.__version__, "transformers": transformers.__version__,
             "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU"}
    record = Record(path, "bench/time_model.py", "Whole models with MSA and with dense attention", SHAPES_OF_RECORD,
                    about | {"calls": [], "cases": {}}, same=about)
    record.run["calls"].append({"commit": made_of, "command": " ".join(sys.argv)})
    return record


def report(record: Record, name: str, layers: int):
    """Beside the fastest of PyTorch's own in the same mode, and the part of a step that is attention."""
    for compiled in (False, True):
        ms = {row["arm"]: row["ms"] for row in record.rows["measured"]
              if (row["case"], row["layer_count"], row["compiled"]) == (name, layers, compiled) and not row.get("error")}
        dense = min((ms[arm] for arm in (*DENSE, "sdpa") if arm in ms), default=None)
        for arm, value in ms.items():
            print(f"{name:8}{'compiled' if compiled else 'eager':9}{arm:13}{value:10.2f} ms"
                  + (f"{dense / value:8.2f} times as fast as dense" if dense else "")
                  + (f", attention {1 - ms['none'] / value:.0%}" if "none" in ms and arm != "none" else ""))


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("record", type=Path)
    parser.add_argument("--cases", default="prefill,decode,8k,32k,128k")
    parser.add_argument("--arms", help="of them only these")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--compiled-only", action="store_true")
    parser.add_argument("--cuda-graph", action="store_true", help="of the compiled passes of training")
    parser.add_argument("--profile", type=Path, metavar="DIR")
    parser.add_argument("--commit", default=commit(), help="of this copy, where git does not know it")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args(arguments)
    began = time.monotonic()
    torch._inductor.config.force_disable_caches = True
    msalab.transformers.register()
    group = learners.Group("cuda" if torch.cuda.is_available() else "cpu")
    record, cases = open_record(options.record, options.commit, group.device), cases_of(options)
    names = options.cases.split(",")
    for name in names:
        record.run["cases"][name] = vars(cases[name])
        arms = [arm for arm in arms_of(name, cases[name]) if not options.arms or arm in options.arms.split(",")]
        modes = (True,) if options.compiled_only else (False, True)
        for compiled, arm in ((compiled, arm) for compiled in modes for arm in arms):
            which = {"case": name, "layer_count": cases[name].shape["num_hidden_layers"], "arm": arm, "compiled": compiled}
            if time.monotonic() - began > options.seconds:
                break
            if options.profile:
                shown = attempted(profile, name, cases[name], arm, compiled, group)
                title = f"{name}-{arm}{'-compiled' if compiled else ''}"
                text = "\n".join([title, *shown.get("lines", shown.values())])
                print(text, flush=True)
                options.profile.mkdir(parents=True, exist_ok=True)
                (options.profile / f"{title}.txt").write_text(text + "\n")
            elif (record.find("measured", **which) or {"error": "there is none"}).get("error"):
                row = which | {"commit": options.commit} | attempted(measure, name, cases[name], arm, compiled, group)
                record.put("measured", row)
                print(json.dumps(row), flush=True)
    for name in [] if options.profile else names:
        report(record, name, cases[name].shape["num_hidden_layers"])
    group.close()


def attempted(work, *of) -> dict:
    """The result of work(*of), or its error. Nothing of it stays on the GPU."""
    try:
        found = work(*of)
    except Exception as error:
        found = {"error": f"{type(error).__name__}: {error}"[:500]}
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return found


if __name__ == "__main__":
    main()
