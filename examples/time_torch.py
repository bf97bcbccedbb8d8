# SPDX-License-Identifier: MIT
"""Times the operations of msalab.torch on a GPU, beside PyTorch's own attention.

    python examples/time_torch.py [--tokens 131072] [--bench msa-bench] [--rivals] [--out FILE]

Three tables. What a call costs the host: the time until it returns while the GPU is busy with other
work, with small operands; below it that of the compiled part alone, which queues the kernels, so
that the difference is what Python and PyTorch add. A layer of 64 heads in 4 groups of 128 channels,
blocks of 128 and k = 16 in bfloat16: the time of the GPU between events, median of several runs,
beside that of `--bench`, the program msa-bench of the same build. `--rivals`: dense attention by
PyTorch (SDPA), and FlexAttention with the same selection as a block mask, at `--rival-tokens`.
"""

import argparse
import json
import statistics
import subprocess
import time

import torch

import msalab
import msalab.torch as m
from msalab import operations
from msalab.nn import MSAttention

HQ, HKV, DH, DIDX, BLOCK, TOP_K = 64, 4, 128, 128, 128, 16


def host_us(call, calls=100, runs=7):
    """Host time of a call, the least of several runs; the GPU sleeps meanwhile."""
    for _ in range(10):
        call()
    found = []
    for _ in range(runs):
        torch.cuda.synchronize()
        torch.cuda._sleep(int(1e8))
        began = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - began) / calls * 1e6)
    torch.cuda.synchronize()
    return min(found)


def gpu_ms(call, runs=7):
    """GPU time of a call, the median of several runs after two."""
    found = []
    for run in range(runs + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end))
    return statistics.median(found[2:])


def operands(queries, keys, dtype=torch.bfloat16, heads=HQ, groups=HKV, dim=DH):
    torch.manual_seed(0)
    shapes = {"q": (queries, heads, dim), "k": (keys, groups, dim), "v": (keys, groups, dim),
              "index_q": (queries, groups, DIDX), "index_k": (keys, DIDX)}
    return {name: torch.randn(shape, dtype=dtype, device="cuda") for name, shape in shapes.items()}


def host_times():
    """(operation, us by msalab.torch, us of the compiled part alone or None)"""
    data = operands(1, 2048)
    q, k, v, index_q, index_k = data.values()
    at = {"cu_seqlens_q": [0, 1], "cu_seqlens_k": [0, 2048], "block_size": BLOCK}
    lengths = {name: at[name] for name in ("cu_seqlens_q", "cu_seqlens_k")}
    ids = m.msa_index_select(index_q, index_k, 4, **at)
    out, lse = m.msa_sparse_attention(q, k, v, ids, return_softmax_lse=True, **at)
    with torch.inference_mode():
        backend = operations.backend_of(q)
        problem = operations._problem(None, at["cu_seqlens_q"], at["cu_seqlens_k"], q, k, index_q,
                                      index_k, block_size=BLOCK)
        rows = [
            ("msa_index_select", lambda: m.msa_index_select(index_q, index_k, 4, **at),
             lambda: backend.index_select(problem, 4, 1, 0, index_q, index_k, ids)),
            ("msa_sparse_attention", lambda: m.msa_sparse_attention(q, k, v, ids, **at),
             lambda: backend.sparse_attention(problem, q, k, v, None, ids, "automatic", out, lse)),
            ("dense_attention", lambda: m.dense_attention(q, k, v, **lengths),
             lambda: backend.dense_attention(problem, q, k, v, None, out, lse)),
            ("msa_index_kl", lambda: m.msa_index_kl(q, k, index_q, index_k, ids, **at), None),
            ("the operator itself", lambda: m._sparse.operator(
                q, k, v, ids, None, None, None, None, BLOCK, "automatic", [0, 1], [0, 2048]), None),
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
    index_q.requires_grad_(), index_k.requires_grad_()
    found["index_kl, all rows"] = gpu_ms(
        lambda: m.msa_index_kl(q, k, index_q, index_k, ids, block_size=BLOCK).backward(), runs=3)
    answered["index_kl"] = operations.backend_of(q).answered_by
    return found, answered


def module_times(tokens, dim=2048):
    """MSAttention forward and backward, projections, norms and RoPE included."""
    module = MSAttention(dim, HQ, HKV, DH, index_dim=DIDX, block_size=BLOCK, top_k=TOP_K,
                         rotary_dim=64, index_rotary=64)
    module = module.to("cuda", torch.bfloat16)
    x = torch.randn(tokens, dim, dtype=torch.bfloat16, device="cuda")
    module.kl = False

    def step():
        module(x)[0].sum().backward()

    return {"MSAttention without KL": gpu_ms(step, runs=3)}


def bench_times(program, tokens):
    """{stage: ms} of msa-bench on the same sizes."""
    sizes = {"query-heads": HQ, "kv-heads": HKV, "head-dim": DH, "index-dim": DIDX,
             "block-size": BLOCK, "top-k": TOP_K, "tokens": tokens, "samples": 7}
    command = [program, "--backend", "cuda", "--cases", "square", "--selection", "random",
               "--order", "automatic", "--index-element", "bf16", "--json", "--stages",
               "index_select,sparse_attention,sparse_attention_grad"]
    command += [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    except subprocess.TimeoutExpired:
        print(f"{program} takes more than 50 s and is left out")
        return {}
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr}")
    return {each["stage"]: each["median_us"] / 1e3
            for each in json.loads(done.stdout)["measurements"] if "median_us" in each}


def rival_times(tokens):
    """{name: (forward ms, forward and backward ms)}: dense, and MSA by FlexAttention."""
    from torch.nn.functional import scaled_dot_product_attention
    data = operands(tokens, tokens)
    q, k, v, index_q, index_k = data.values()
    ids = m.msa_index_select(index_q, index_k, TOP_K, block_size=BLOCK)
    leaves = [data[name].requires_grad_() for name in "qkv"]
    heads_first = [leaf.detach().transpose(0, 1)[None].contiguous().requires_grad_()
                   for leaf in leaves]

    def both(call, inputs):
        out = call()
        d_out = torch.randn_like(out)
        del out
        with torch.no_grad():
            forward = gpu_ms(call, runs=3)
        return forward, gpu_ms(lambda: torch.autograd.grad(call(), inputs, d_out), runs=3)

    found = {"msalab, selection included": both(lambda: m.msa_sparse_attention(
        *leaves, m.msa_index_select(index_q, index_k, TOP_K, block_size=BLOCK),
        block_size=BLOCK), leaves)}
    found["SDPA, dense"] = both(lambda: scaled_dot_product_attention(
        *heads_first, is_causal=True, enable_gqa=True), heads_first)
    try:
        from torch.nn.attention.flex_attention import BlockMask, flex_attention
    except ImportError:
        return found
    blocks = -(-tokens // BLOCK)
    kept = torch.zeros(HKV, tokens, blocks + 1, dtype=torch.bool, device="cuda")
    kept.scatter_(2, ids.transpose(0, 1).long().where(ids.transpose(0, 1) >= 0, blocks), True)
    kept = kept[:, :, :blocks].contiguous()
    tiles = kept.view(HKV, blocks, BLOCK, blocks).any(2).repeat_interleave(HQ // HKV, 0)
    counts = tiles.sum(-1, dtype=torch.int32)[None]
    order = tiles.int().argsort(dim=-1, descending=True, stable=True).int()[None]

    def mask(_, head, row, column):
        return kept[head // (HQ // HKV), row, column // BLOCK] & (row >= column)

    chosen = BlockMask.from_kv_blocks(counts, order, BLOCK_SIZE=BLOCK, mask_mod=mask)
    flex = torch.compile(flex_attention)
    found["FlexAttention, the same selection"] = both(
        lambda: flex(*heads_first, block_mask=chosen, enable_gqa=True), heads_first)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=1 << 17)
    parser.add_argument("--rival-tokens", type=int, default=1 << 15, help="a multiple of 128")
    parser.add_argument("--bench", metavar="PROGRAM", help="msa-bench of the same build")
    parser.add_argument("--rivals", action="store_true")
    parser.add_argument("--out", metavar="FILE", help="a JSON record")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("time_torch.py: PyTorch finds no GPU")
    record = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__,
              "backend": msalab.backends()["cuda"] or "usable", "tokens": options.tokens}

    def done(name, found):
        record[name] = found
        if options.out:
            with open(options.out, "w") as file:
                json.dump(record, file, indent=1)

    print(f"{record['gpu']}, PyTorch {record['torch']}\n\nhost time of a call, us"
          f"{'msalab.torch':>34}{'compiled part':>16}{'difference':>12}")
    rows = host_times()
    for name, whole, part in rows:
        print(f"{name:44}{whole:13.1f}"
              + (f"{part:16.1f}{whole - part:12.1f}" if part else ""))
    done("host_us", rows)
    bench = bench_times(options.bench, options.tokens) if options.bench else {}
    times, answered = layer_times(options.tokens)
    done("layer_ms", times)
    done("answered_by", answered)
    if bench:
        bench["forward and backward"] = sum(bench.values())
        done("bench_ms", bench)
    print(f"\n{options.tokens} tokens, ms{'msalab.torch':>30}{'msa-bench':>12}{'ratio':>8}")
    for name, ms in times.items():
        other = bench.get(name)
        print(f"{name:36}{ms:10.3f}" + (f"{other:12.3f}{ms / other:8.3f}" if other else ""))
    torch.cuda.empty_cache()
    module = module_times(options.tokens)
    done("module_ms", module)
    for name, ms in module.items():
        print(f"{name:36}{ms:10.3f}")
    if options.rivals:
        torch.cuda.empty_cache()
        rivals = rival_times(options.rival_tokens)
        done("rivals_ms", rivals)
        print(f"\n{options.rival_tokens} tokens, ms{'forward':>30}{'and backward':>14}")
        for name, (forward, step) in rivals.items():
            print(f"{name:36}{forward:10.3f}{step:14.3f}")


if __name__ == "__main__":
    main()
