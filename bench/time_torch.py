# SPDX-License-Identifier: MIT
"""Times the operations of msalab.torch on a GPU, beside other attentions of PyTorch.

    python bench/time_torch.py [--tokens 131072] [--bench msa-bench] [--rivals] [--out FILE]
    python bench/time_torch.py --bench msa-bench --rivals --out data/bench/torch-h100.json

Three tables. What a call costs the host: the time until it returns while the GPU is busy with other
work, with small operands; beside it that of the compiled part alone, which queues the kernels, so
that the difference is what Python and PyTorch add. A layer of 64 heads in 4 groups of 128 channels,
blocks of 128 and k = 16 in bfloat16: the time of the GPU between events, median of several runs,
beside that of `--bench`, the program msa-bench of the same build; layer_grad is a layer's step of
training, as msa-bench has it, and MSAttention the same with projections, norms and RoPE. `--rivals`:
what else is installed, at `--rival-tokens` (bench/torch_rivals.py). The record that `--out` names
is written after every table, and notebooks/08_torch.ipynb shows it; the rivals are done after `--seconds`.
Where PyTorch finds no GPU there are the first table, with operands so small that computing takes
little of it, and the last one, of a small layer on the CPU.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import time

import baselines
import torch
import torch_rivals
from record import SKIPPED, Record, number
from timer import device_ms, host_us

import msalab
import msalab.torch as m
from msalab import operations
from msalab.nn import MSAttention
from msalab.report import Shape
from msalab.results import Column

HQ, HKV, DH, DIDX, BLOCK, TOP_K = 64, 4, 128, 128, 128, 16
NOT_SAID = "not of this stage"
SHAPES = [
    Shape("host", "calls of msalab.torch", 1, {
        "call": Column("text", "", "the operation"), "host_us": number("us", "time of the host until it returns"),
        "compiled_us": number("us", "of that, in the compiled part alone")}),
    Shape("layer", "stages of a layer, by msalab.torch and by msa-bench of the same build", 1, {
        "stage": Column("text", "", "name of the stage"), "torch_ms": number("ms", "median by msalab.torch"),
        "bench_ms": number("ms", "median by msa-bench"),
        "torch_answered_by": Column("text", "", "kernel that answered msalab.torch", NOT_SAID)}),
    Shape("rivals", "attentions of PyTorch at the sizes of rival_case", 1, {
        "contender": Column("text", "", "name of the attention"), "attends_to": Column("text", "", "which keys a query reads"),
        "off": number("1", "largest difference of an output from ours"),
        "forward_ms": number("ms", "median of the forward pass"), "step_ms": number("ms", "median of forward and backward pass"),
        "other_ids": number("1", "share of ids that differ from ours"), "skipped": SKIPPED})]


def gpu_ms(call, runs=7):
    return statistics.median(device_ms(call, "cuda", runs))


def operands(queries, keys, dtype=torch.bfloat16, heads=HQ, groups=HKV, dim=DH, device="cuda"):
    torch.manual_seed(0)
    shapes = {"q": (queries, heads, dim), "k": (keys, groups, dim), "v": (keys, groups, dim),
              "index_q": (queries, groups, dim), "index_k": (keys, dim)}
    return {name: torch.randn(shape, dtype=dtype, device=device) for name, shape in shapes.items()}


def host_times():
    """(operation, us by msalab.torch, us of the compiled part alone or None)"""
    if torch.cuda.is_available():
        keys, block, data = 2048, BLOCK, operands(1, 2048)
    else:
        keys, block = 16, 8
        data = operands(1, keys, torch.float32, heads=4, groups=2, dim=16, device="cpu")
    q, k, v, index_q, index_k = data.values()
    at = {"cu_seqlens_q": [0, 1], "cu_seqlens_k": [0, keys], "block_size": block}
    lengths = {name: at[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    top_k = min(4, keys // block)
    ids = m.msa_index_select(index_q, index_k, top_k, **at)
    out, lse = m.msa_sparse_attention(q, k, v, ids, return_softmax_lse=True, **at)
    main_lse = lse.clone()  # dense attention writes another into lse
    with torch.inference_mode():
        backend = operations.backend_of(q)
        problem = operations._problem(None, at["cu_seqlens_q"], at["cu_seqlens_k"], q, k, index_q,
                                      index_k, block_size=block)
        rows = [
            ("msa_index_select", lambda: m.msa_index_select(index_q, index_k, top_k, **at),
             lambda: backend.index_select(problem, top_k, 1, 0, index_q, index_k, None, None, ids,
                                          None, None, None)),
            ("msa_sparse_attention", lambda: m.msa_sparse_attention(q, k, v, ids, **at),
             lambda: backend.sparse_attention(problem, q, k, v, None, ids, "automatic", out, lse,
                                              None, None, None, None, None)),
            ("dense_attention", lambda: m.dense_attention(q, k, v, **lengths),
             lambda: backend.dense_attention(problem, q, k, v, None, out, lse)),
            ("msa_index_kl", lambda: m.msa_index_kl(q, k, index_q, index_k, ids, main_lse=main_lse,
                                                    **at), None),
            ("the operator itself", lambda: m._sparse.operator(
                q, k, v, ids, *(None,) * 7, block, "automatic", [0, 1], [0, keys]), None),
            ("torch.mul", lambda: torch.mul(q, q), None),
        ]
        found = [(name, host_us(call), compiled and host_us(compiled))
                 for name, call, compiled in rows]
    leaf = q.clone().requires_grad_()
    found.append(("msa_sparse_attention, to be differentiated", host_us(
        lambda: m.msa_sparse_attention(leaf, k, v, ids, **at)), None))
    return found


def layer_times(tokens):
    """{stage: ms} at `tokens` queries and keys."""
    data = operands(tokens, tokens)
    q, k, v, index_q, index_k = data.values()
    ids = m.msa_index_select(index_q, index_k, TOP_K, block_size=BLOCK)
    found = {"index_select": gpu_ms(lambda: m.msa_index_select(index_q, index_k, TOP_K,
                                                               block_size=BLOCK))}
    found["sparse_attention"] = gpu_ms(lambda: m.msa_sparse_attention(q, k, v, ids,
                                                                      block_size=BLOCK))
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    out = m.msa_sparse_attention(*leaves, ids, block_size=BLOCK)
    d_out = torch.randn_like(out)
    found["sparse_attention_grad"] = gpu_ms(
        lambda: torch.autograd.grad(out, leaves, d_out, retain_graph=True))
    answered = {"sparse_attention_grad": operations.backend_of(q).answered_by}

    def step():
        chosen = m.msa_index_select(index_q, index_k, TOP_K, block_size=BLOCK)
        torch.autograd.grad(m.msa_sparse_attention(*leaves, chosen, block_size=BLOCK), leaves,
                            d_out)

    found["forward and backward"] = gpu_ms(step)
    del out, d_out
    index = [tensor.requires_grad_() for tensor in (index_q, index_k)]
    d_out = torch.randn_like(q)

    def train():
        chosen, index_lse = m.msa_index_select(*index, TOP_K, block_size=BLOCK,
                                               return_index_lse=True)
        out, main_lse = m.msa_sparse_attention(*leaves, chosen, block_size=BLOCK,
                                               return_softmax_lse=True)
        kl = m.msa_index_kl(q, k, *index, chosen, main_lse=main_lse, index_lse=index_lse,
                            block_size=BLOCK)
        answered["index_kl"] = operations.backend_of(q).answered_by
        torch.autograd.grad((out, kl), (*leaves, *index), (d_out, torch.ones_like(kl)))

    found["layer_grad"] = gpu_ms(train)
    return found, answered


def module_times(tokens, dim=2048):
    """MSAttention forward and backward, projections, norms and RoPE included."""
    module = MSAttention(dim, HQ, HKV, DH, index_dim=DIDX, block_size=BLOCK, top_k=TOP_K,
                         rotary_dim=64, index_rotary=64)
    module = module.to("cuda", torch.bfloat16)
    x = torch.randn(tokens, dim, dtype=torch.bfloat16, device="cuda")

    def step():
        y, kl = module(x)
        (y.sum() + kl).backward()

    found = {"MSAttention": gpu_ms(step, runs=3)}
    module.kl = False
    found["MSAttention without KL"] = gpu_ms(step, runs=3)
    return found


def bench_times(program, tokens):
    """{stage: ms} of msa-bench on the same sizes."""
    sizes = {"query-heads": HQ, "kv-heads": HKV, "head-dim": DH, "index-dim": DIDX,
             "block-size": BLOCK, "top-k": TOP_K, "tokens": tokens, "samples": 7}
    command = [program, "--backend", "cuda", "--cases", "square", "--selection", "random",
               "--order", "automatic", "--index-element", "bf16", "--json", "--stages",
               "index_select,sparse_attention,sparse_attention_grad,layer_grad"]
    command += [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    except subprocess.TimeoutExpired:
        print(f"{program} takes more than 50 s and is left out")
        return {}
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    found = {each["stage"]: each["median_us"] / 1e3
             for each in baselines.rows(json.loads(done.stdout), "measurements") if "median_us" in each}
    parts = [found.get(stage, 0) for stage in ("index_select", "sparse_attention",
                                               "sparse_attention_grad")]
    return found | {"forward and backward": sum(parts)} if all(parts) else found


def print_host_times(record):
    """The first table, printed and recorded."""
    print(f"\nhost time of a call, us{'msalab.torch':>34}{'compiled part':>16}{'difference':>12}")
    rows = host_times()
    for name, whole, part in rows:
        print(f"{name:44}{whole:13.1f}"
              + (f"{part:16.1f}{whole - part:12.1f}" if part else ""))
        record.put("host", {"call": name, "host_us": whole, "compiled_us": part})


def own_times(options, record):
    """The first two tables, printed and recorded."""
    record.run["tokens"] = options.tokens
    print_host_times(record)
    bench = bench_times(options.bench, options.tokens) if options.bench else {}
    times, answered = layer_times(options.tokens)
    for name in dict.fromkeys([*times, *answered, *bench]):
        record.put("layer", {"stage": name, "torch_ms": times.get(name), "bench_ms": bench.get(name),
                             "torch_answered_by": answered.get(name)})
    print(f"\n{options.tokens} tokens, ms{'msalab.torch':>30}{'msa-bench':>12}{'ratio':>8}")
    for name, ms in times.items():
        other = bench.get(name)
        print(f"{name:36}{ms:10.3f}" + (f"{other:12.3f}{ms / other:8.3f}" if other else ""))
    torch.cuda.empty_cache()
    module = module_times(options.tokens)
    for name, ms in module.items():
        record.put("layer", {"stage": name, "torch_ms": ms})
        print(f"{name:36}{ms:10.3f}")
    torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1 << 17)
    parser.add_argument("--rival-tokens", type=int, default=1 << 15, help="a multiple of 128")
    parser.add_argument("--bench", metavar="PROGRAM", help="msa-bench of the same build")
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument("--out", metavar="FILE", help="a JSON record")
    parser.add_argument("--seconds", type=float, default=90, help="when the rivals must be done")
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    on_gpu = torch.cuda.is_available()
    case = torch_rivals.Case(options.rival_tokens) if on_gpu else torch_rivals.Case.small()
    if options.out:
        pathlib.Path(options.out).unlink(missing_ok=True)
    record = Record(options.out, "bench/time_torch.py", "Operations of msalab.torch beside msa-bench and other attentions", SHAPES,
                    {"device": torch_rivals.device_name(), "torch": torch.__version__, "rival_case": case.sizes()})
    print(f"{record.run['device']}, PyTorch {record.run['torch']}")
    if on_gpu:
        own_times(options, record)
    else:
        print_host_times(record)
    if options.rivals or not on_gpu:
        rows = torch_rivals.measure(case, end - time.monotonic())
        for row in rows:
            record.put("rivals", row)
        print(f"\n{case.tokens} tokens, ms{'forward':>31}{'and backward':>14}")
        for row in rows:
            print(f"{row['contender']:36}" + "".join(
                f"{row[name]:{width}.3f}" if name in row else " " * width
                for name, width in (("forward_ms", 10), ("step_ms", 14)))
                + f"  {row.get('skipped', '')}")


if __name__ == "__main__":
    main()
