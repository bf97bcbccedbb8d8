#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""What others do on this GPU at the shapes that msa-bench measured: PyTorch's torch.topk, a copy, a
matrix product, and dense attention: of squares by cuDNN and FlashAttention 4 (package flash-attn-4),
of decoding by cuDNN and PyTorch's flash. Each answer of attention is compared with the formula in
float32 before it is timed.

With --record, shapes and sizes come from a record of msa-bench; the results go into it as its table
baselines, each measurement gets its share of the matrix product's rate, and the speed-ups are
printed. Without it, the shapes are the paper's. What fails is reported and left out.

Times are CUDA events around calls from a cold cache; in decoding, up to 8 calls in a row, each with
keys and values of its own, in a CUDA graph where that works. Queries of one decode step see all
keys: the few that a causal mask would hide cost nothing.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import sys

PAPER = {"query_heads": 64, "kv_heads": 4, "head_dim": 128}
SHAPES = {  # kind: (sequences, queries of each, keys of each, blocks, k)
    "square": [(1, n, n, 0, 0) for n in (8192, 32768, 131072)],
    "decode": [(b, q, 1048576, 0, 0) for b in (1, 8) for q in (1, 8)],
    "top-k": [(1, n, 0, b, k) for n, b, k in ((131072, 1024, 16), (131072, 2048, 32),
                                              (524288, 4096, 16), (524288, 8192, 32))],
}
DENSE = {"square": ("cuDNN", "FlashAttention 4"), "decode": ("cuDNN", "flash")}
CHECKED_TOKENS = 1024
MOST_LAYERS, LAYER_BYTES = 8, 1 << 34  # as msa-bench has them
LONG_SECONDS = 10


# What a record of msa-bench does not describe (data/FORMAT.md).
COLUMNS = {
    "baseline": {"type": "text", "unit": "", "definition": "name of the call"},
    "library": {"type": "text", "unit": "", "definition": "what computes attention",
                "null": "PyTorch itself"},
    "stage_bytes_per_second": {"type": "real", "unit": "B/s", "definition": "stage_bytes over the median",
                               "null": "not counted"},
    "torch_version": {"type": "text", "unit": "", "definition": "version of PyTorch"},
    "cudnn_version": {"type": "integer", "unit": "", "definition": "number of cuDNN's version",
                      "null": "there is none"},
}
TABLE = ("baseline", "case_kind", "library", "case_sequences", "case_queries", "case_keys", "case_blocks",
         "top_k", "stage_flops", "stage_bytes", "stage_flops_per_second", "stage_bytes_per_second",
         "calls_per_sample", "median_us", "samples_us", "torch_version", "cudnn_version", "skipped")


def read(path) -> dict:
    """A record of msa-bench; exits on any other file."""
    record = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    if record.get("program") != "msa-bench":
        sys.exit(f"{path}: is no record of msa-bench")
    return record


def rows(record: dict, table: str) -> list[dict]:
    """The rows of a table without their null values; no rows where the record lacks the table."""
    found = record["tables"].get(table, {"rows": []})["rows"]
    return [{key: value for key, value in row.items() if value is not None} for row in found]


def measurements(record: dict) -> list[dict]:
    """Each with the columns of its case."""
    cases = {case["case"]: case for case in rows(record, "cases")}
    return [{**cases[m["case"]], **m} for m in rows(record, "measurements")]


def device_of(record: dict) -> str:
    return record["tables"]["benchmark"]["rows"][0]["device"]


def add_table(record: dict, found: list[dict]) -> None:
    """Adds the table of baselines, or replaces it."""
    record["columns"].update(COLUMNS)
    record["tables"]["baselines"] = {
        "about": "what others took on the same device", "key": ["baseline"], "columns": list(TABLE),
        "rows": [{key: row.get(key) for key in TABLE} for row in found]}


def shapes_of(record: dict) -> dict:
    """The shapes of a record of msa-bench, by kind."""
    shapes: dict[str, list] = {kind: [] for kind in SHAPES}
    for m in rows(record, "cases"):
        kind, n, queries = m["case_kind"], m["case_sequences"], m["case_queries"]
        if kind == "top-k":
            shapes[kind].append((1, queries, 0, m["case_blocks"], m["top_k"]))
        elif kind in shapes and (shape := (n, queries // n, m["case_keys"] // n, 0, 0)) not in shapes[kind]:
            shapes[kind].append(shape)
    return shapes


def key_of(kind: str, sequences: int, queries: int, keys: int, blocks: int, top_k: int,
           case: str) -> tuple:
    """What a measurement and its baseline have in common."""
    if kind == "top-k":
        return kind, queries, blocks, top_k
    if kind in ("square", "decode"):
        return kind, sequences, queries, keys
    return kind, case


def key_of_measurement(m: dict) -> tuple:
    n = m["case_sequences"]
    return key_of(m["case_kind"], n, m["case_queries"] // n, m["case_keys"] // n, m["case_blocks"],
                  m["top_k"], m["case"])


def dense_by(torch, backend: str, causal: bool):
    """Attention of q, k, v [batch, heads, tokens, dh]; FlashAttention's are [batch, tokens, heads, dh]
    in memory."""
    if backend == "FlashAttention 4":
        from flash_attn.cute import flash_attn_func

        def attend(q, k, v):
            out = flash_attn_func(*(x.transpose(1, 2) for x in (q, k, v)), causal=causal)
            return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)
        return attend
    from torch.nn.attention import SDPBackend, sdpa_kernel
    choice = {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}[backend]

    def attend(q, k, v):
        with sdpa_kernel(choice):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal,
                                                                    enable_gqa=True)
    return attend


def require_attention(torch, attend, q, k, v, causal: bool) -> None:
    """Refuses an `attend` that computes something else on the first tokens. The bound: weights,
    inner sums and outputs are rounded to bfloat16."""
    q, k, v = (x[:1, :, :CHECKED_TOKENS] for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q.float(), k.float(), v.float(), is_causal=causal, enable_gqa=True)
    off = (attend(q, k, v).float() - expected).abs().max().item()
    bound = 3 * 2**-8 * v.abs().max().item()
    if not off <= bound:
        raise ValueError(f"its outputs are {off:.3g} from attention, more than {bound:.3g}")


class Bench:
    """Times calls on the current device."""

    def __init__(self, torch, samples: int):
        self.torch, self.samples, self.results = torch, samples, []
        self.filler = torch.zeros(1 << 26, dtype=torch.float32, device="cuda")

    def sample(self, work) -> float:
        from timer import cold_ms  # needs PyTorch, which readers of the record do not

        # A sum leaves the caches nothing to write back, and hides the first launches.
        return cold_ms(work, self.filler.sum) * 1e-3

    def graph_of(self, work):
        """The same as one launch, where the library allows it."""
        try:
            graph = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.graph(graph):
                work()
            return graph.replay
        except Exception:  # whatever it is, the plain calls remain
            self.torch.cuda.synchronize()
            return work

    def add(self, name: str, prepare, **facts) -> None:
        """Times the calls that prepare() returns; one result, or a message why there is none."""
        torch = self.torch
        try:
            calls = prepare()
            first = self.sample(calls[0])
            if first > LONG_SECONDS:
                seconds, calls = [first], calls[:1]
            else:
                work = calls[0]
                if len(calls) > 1:
                    for call in calls:
                        call()
                    torch.cuda.synchronize()
                    work = self.graph_of(lambda: [call() for call in calls])
                self.sample(work)
                count = max(1, min(self.samples, int(LONG_SECONDS / first)))
                seconds = [self.sample(work) / len(calls) for _ in range(count)]
        except Exception as error:
            calls = work = None
            self.results.append({"baseline": name, **facts, "skipped": str(error).split("\n")[0]})
            print(f"{name}: skipped: {self.results[-1]['skipped'][:200]}", file=sys.stderr)
            torch.cuda.empty_cache()
            return
        result = {"baseline": name, **facts, "calls_per_sample": len(calls),
                  "median_us": 1e6 * statistics.median(seconds),
                  "samples_us": " ".join(str(1e6 * s) for s in seconds)}
        for amount in ("stage_flops", "stage_bytes"):
            if amount in facts:
                result[f"{amount}_per_second"] = facts[amount] / (result["median_us"] * 1e-6)
        self.results.append(result)
        print(f"{name}: {result['median_us']:.1f} us", file=sys.stderr)
        calls = work = None
        torch.cuda.empty_cache()

    def ceilings(self) -> None:
        torch = self.torch

        def copy():
            source = torch.empty(1 << 31, dtype=torch.int8, device="cuda")
            target = torch.empty_like(source)
            return [lambda: target.copy_(source)]

        def gemm():
            a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            return [lambda: torch.mm(a, b)]

        self.add("copy", copy, stage_bytes=float(2 << 31))
        self.add("gemm bf16", gemm, stage_flops=float(2 * 8192**3))

    def dense(self, kind: str, backend: str, sizes: dict, shape: tuple) -> None:
        torch = self.torch
        sequences, queries, keys = shape[:3]
        heads, groups, width = sizes["query_heads"], sizes["kv_heads"], sizes["head_dim"]
        causal = kind == "square"

        def prepare():
            each = 4 * sequences * (heads * queries + groups * keys) * width
            layers = max(1, min(MOST_LAYERS, LAYER_BYTES // each)) if kind == "decode" else 1
            attend = dense_by(torch, backend, causal)

            def make(count, tokens):
                tokens_first = backend == "FlashAttention 4"
                size = (tokens, count) if tokens_first else (count, tokens)
                x = torch.randn(sequences, *size, width, device="cuda", dtype=torch.bfloat16)
                return x.transpose(1, 2) if tokens_first else x

            def call(checked):
                q, k, v = make(heads, queries), make(groups, keys), make(groups, keys)
                if checked:
                    require_attention(torch, attend, q, k, v, causal)
                return lambda: attend(q, k, v)
            return [call(layer == 0) for layer in range(layers)]

        pairs = queries * (queries + 1) / 2 if kind == "square" else sequences * queries * keys
        self.add(f"{kind} {backend} {sequences} x {queries} over {keys}", prepare, case_kind=kind,
                 library=backend, case_sequences=sequences, case_queries=queries, case_keys=keys,
                 stage_flops=float(4 * heads * width * pairs))

    def top_k(self, rows: int, blocks: int, k: int) -> None:
        torch = self.torch

        def prepare():
            scores = torch.randn(rows, blocks, device="cuda")
            return [lambda: torch.topk(scores, k, dim=1)]
        self.add(f"torch.topk {k} of {blocks}, {rows} rows", prepare, case_kind="top-k", case_queries=rows,
                 case_blocks=blocks, top_k=k, stage_bytes=float(4 * rows * (blocks + 3 * k)))


def measure(sizes: dict, shapes: dict, samples: int) -> list[dict]:
    """Rows of the table."""
    import torch
    torch.manual_seed(0)
    bench = Bench(torch, samples)
    bench.ceilings()
    for kind, backends in DENSE.items():
        for shape in shapes[kind]:
            for backend in backends:
                bench.dense(kind, backend, sizes, shape)
    for _, rows, _, blocks, k in shapes["top-k"]:
        bench.top_k(rows, blocks, k)
    versions = {"torch_version": torch.__version__, "cudnn_version": torch.backends.cudnn.version()}
    return [{**result, **versions} for result in bench.results]


def merge(record: dict, found: list[dict]) -> None:
    """Adds the baselines to the record, and to its measurements the share of the GEMM rate."""
    add_table(record, found)
    gemm = [b["stage_flops_per_second"] for b in found if b["baseline"] == "gemm bf16" and "median_us" in b]
    for m in record["tables"]["measurements"]["rows"]:
        if gemm and m["stage_flops"]:
            m["share_of_gemm"] = m["stage_flops_per_second"] / gemm[0]


def fastest_baselines(record: dict) -> dict[tuple, tuple]:
    """(microseconds, name) by key_of: PyTorch's, and the record's own dense attention by cuDNN."""
    found = []
    for m in measurements(record):
        if m["stage"] == "dense_attention" and m.get("answered_by", "").startswith("cuDNN"):
            found.append((key_of_measurement(m), m["median_us"], "cuDNN"))
    for b in rows(record, "baselines"):
        if "median_us" in b and "case_kind" in b:
            key = key_of(b["case_kind"], b.get("case_sequences", 1), b["case_queries"], b.get("case_keys", 0),
                         b.get("case_blocks", 0), b.get("top_k", 0), b["baseline"])
            found.append((key, b["median_us"], b.get("library", "torch.topk")))
    fastest: dict[tuple, tuple] = {}
    for key, microseconds, name in found:
        fastest[key] = min(fastest.get(key, (math.inf, "")), (microseconds, name))
    return fastest


def speed_ups(record: dict) -> list[tuple]:
    """(case, what, microseconds, baseline's name, its microseconds, ratio)."""
    fastest = fastest_baselines(record)
    found = []
    for m in measurements(record):
        if m["stage"] not in ("layer", "select_blocks") or "median_us" not in m:
            continue
        best = fastest.get(key_of_measurement(m))
        if best:
            parts = ("stage", "selection", "index_form")
            found.append((m["case"], " ".join(m[part] for part in parts if m.get(part)),
                         m["median_us"], best[1], best[0], best[0] / m["median_us"]))
    return found


def print_tables(record: dict) -> None:
    for b in rows(record, "baselines"):
        if "case_kind" not in b and "median_us" in b:
            rate = b.get("stage_flops_per_second", b.get("stage_bytes_per_second", math.nan))
            print(f"{b['baseline']}: {rate * 1e-12:.2f} {'TFLOP' if 'stage_flops' in b else 'TB'}/s")
    shares = [m for m in rows(record, "measurements") if "share_of_gemm" in m]
    if shares:
        print(f"\n{'case':28} {'stage':44} {'TFLOP/s':>8} {'of GEMM':>8}")
    for m in shares:
        stage = " ".join(m[part] for part in ("stage", "selection", "order", "index_form")
                         if part in m)
        print(f"{m['case']:28} {stage:44} {m['stage_flops_per_second'] * 1e-12:8.1f} "
              f"{m['share_of_gemm']:8.3f}")
    found = speed_ups(record)
    if found:
        print(f"\n{'case':28} {'stage':30} {'us':>12}  {'baseline':12} {'us':>12} {'speed-up':>9}")
    for case, stage, us, name, base, ratio in found:
        print(f"{case:28} {stage:30} {us:12.1f}  {name:12} {base:12.1f} {ratio:8.2f}x")


def lines_of(content, indent: str = "") -> str:
    """JSON text as the programs write it: what holds nothing nested, as a row, is one line."""
    parts = content.values() if isinstance(content, dict) else content if isinstance(content, list) else ()
    if not any(isinstance(part, (dict, list)) for part in parts):
        return json.dumps(content, separators=(",", ":"), ensure_ascii=False)
    names = [json.dumps(name) + ": " for name in content] if isinstance(content, dict) else [""] * len(content)
    more = indent + " "
    lines = ",".join(f"\n{more}{name}{lines_of(part, more)}" for name, part in zip(names, parts))
    opening, closing = "{}" if isinstance(content, dict) else "[]"
    return f"{opening}{lines}\n{indent}{closing}"


def write(path: str, content: dict) -> None:
    with open(path + ".partial", "w", encoding="utf-8") as file:
        file.write(lines_of(content) + "\n")
    os.replace(path + ".partial", path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", help="record of msa-bench to complete")
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--most-tokens", type=int, default=1 << 17,
                        help="leave out longer prefills (1M takes a minute)")
    options = parser.parse_args()
    record = read(options.record) if options.record else None
    try:
        import torch
    except ImportError as error:
        sys.exit(f"baselines need PyTorch: {error}")
    if not torch.cuda.is_available():
        sys.exit("baselines need a GPU that PyTorch can use")
    if record and torch.cuda.get_device_name() not in device_of(record):
        sys.exit(f"{options.record} is of {device_of(record)}, "
                 f"PyTorch uses {torch.cuda.get_device_name()}")
    shapes = shapes_of(record) if record else SHAPES
    shapes["square"] = [shape for shape in shapes["square"] if shape[2] <= options.most_tokens]
    sizes = {name: record["tables"]["benchmark"]["rows"][0][name] for name in PAPER} if record else PAPER
    found = measure(sizes, shapes, options.samples)
    if record:
        merge(record, found)
        write(options.record, record)
    else:
        record = {"tables": {"baselines": {"rows": found}}}
    print_tables(record)


if __name__ == "__main__":
    main()
