# SPDX-License-Identifier: MIT
"""Shapes of serving over a cache in pages: msalab beside the Triton kernels of vLLM's MiniMax-M3 layer, on a GPU.

    python bench/serving_rivals.py [--out FILE] [--only PATTERN] [--seconds S] [--commit SHA] [--small]

Both select k blocks of 128 keys and attend to them, in bfloat16, 64 heads in 4 groups of 128 channels, k = 16. vLLM takes
its kernels of decode where every request has the same few new tokens, as its layer does, and those of prefill
otherwise. A time is the GPU's, of a call among several that are queued while the GPU sleeps, the median of several such
runs; so what a call costs the host is not in it. Operands are used again and again, and small ones stay in the L2 cache.

vLLM must select the same blocks, but for scores that rounding makes equal: at most 1 of 1000 ids may differ. Its
attention then gets our ids, and its output may be as far from ours as rounding allows (torch_rivals.py); what computes
something else gets no time. `operands`: random ones, or alike ones, where the 128 queries of a tile look for the
same keys; `union` is the mean number of blocks that such a tile of a group selects. --small: one small case on the
CPU. --seconds: no case begins later.
"""

import argparse
import re
import statistics
import time
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch
from record import CASE, SKIPPED, Record, number
from timer import device_ms
from torch_rivals import device_name, farthest, other_ids

import msalab.torch as m
from msalab.report import Shape
from msalab.results import Column

BLOCK, TILE, DECODED = 128, 128, 16  # keys, queries; new tokens of a request that vLLM still decodes
MOST_OTHER = 1e-3  # of ids
SHAPES = [Shape("layers", "layers of one step, by msalab and by vLLM", 2, {
    "case": CASE, "operands": Column("text", "", "random, or alike: the queries of a tile look for the same keys"),
    "union": number("blocks", "blocks that a tile of 128 queries selects, mean over tiles and groups"),
    **{f"{side}_{part}_us": number("us", f"{what} by {name}") for side, name in (("msalab", "msalab"), ("vllm", "vLLM"))
       for part, what in (("select", "selection"), ("attend", "attention to our ids"), ("layer", "both"))},
    "other_ids": number("1", "share of ids that differ from ours"),
    "off": number("1", "largest difference of an output from ours"), "skipped": SKIPPED})]


@dataclass(frozen=True)
class Case:
    """Requests with so many new tokens each, behind as many others as make the lengths."""

    name: str
    new: tuple
    lengths: tuple
    query_heads: int = 64
    kv_heads: int = 4
    head_dim: int = 128
    top_k: int = 16
    dtype: torch.dtype = torch.bfloat16
    block_size: int = BLOCK

    @property
    def tokens(self):
        return max(self.lengths)

    @property
    def is_decoded(self):
        return len(set(self.new)) == 1 and self.new[0] <= DECODED


def even(name, requests, new, over):
    return Case(name, (new,) * requests, (over + new,) * requests)


CASES = (even("171 over 18K", 1, 171, 18 << 10), even("347 over 18K", 1, 347, 18 << 10),
         even("171 over 132K", 1, 171, 132 << 10), even("16K over 128K", 1, 16 << 10, 128 << 10),
         *(even(f"{rows} x 1 over 32K", rows, 1, (32 << 10) - 1) for rows in (1, 8, 32, 128)),
         *(even(f"{rows} x 8 over 32K", rows, 8, (32 << 10) - 8) for rows in (1, 8, 32)),
         even("8 x 1 over 128K", 8, 1, (128 << 10) - 1), even("1 x 1 over 1M", 1, 1, (1 << 20) - 1),
         Case("1 x 1 over 1M beside 63 over 8K", (1,) * 64, (1 << 20, *(8192,) * 63)))
SMALL = (Case("small", (3, 130), (300, 700), 8, 2, 32, 3, torch.float32),)


class Operands:
    """q [n, Hq, dh], index_q [n, Hkv, didx]; a pool of pages of 128 tokens for keys and values, each [pages, 128, Hkv,
    dh], one for index keys [pages, 128, didx]; page_table [requests, most pages] in a random order; lengths
    [requests] and cu_seqlens_q."""

    def __init__(self, case: Case, selection: str, device: str):
        draw = torch.Generator(device).manual_seed(0)

        def normal(*shape):
            return torch.randn(shape, generator=draw, device=device, dtype=torch.float32).to(case.dtype)

        pages = [-(-length // BLOCK) for length in case.lengths]
        order = torch.randperm(sum(pages), generator=draw, device=device).int()
        self.page_table = torch.nn.utils.rnn.pad_sequence(order.split(pages), batch_first=True).contiguous()
        self.lengths = torch.tensor(case.lengths, dtype=torch.int32, device=device)
        ends = torch.tensor([0, *case.new]).cumsum(0)
        self.ends, self.cu_q = ends.tolist(), ends.int().to(device)
        queries, dim = self.ends[-1], case.head_dim
        self.q = normal(queries, case.query_heads, dim)
        self.k, self.v = (normal(sum(pages), BLOCK, case.kv_heads, dim) for _ in range(2))
        self.index_k = normal(sum(pages), BLOCK, dim)
        self.index_q = normal(queries, case.kv_heads, dim)
        if selection == "alike":
            shared = normal(-(-queries // TILE), case.kv_heads, dim).repeat_interleave(TILE, 0)[:queries]
            self.index_q = (2 * shared + self.index_q).contiguous()


class Ours:
    key = "msalab"

    def __init__(self, case: Case, given: Operands):
        # As an engine does: lengths are on the device.
        pages = {"block_size": BLOCK, "page_table": given.page_table, "cu_seqlens_q": given.ends,
                 "seqused_k": given.lengths, "max_seqlen_k": max(case.lengths)}
        self.select = lambda: m.index_select(given.index_q, given.index_k, case.top_k, **pages)
        self.attend = lambda ids: m.sparse_attention(given.q, given.k, given.v, ids, **pages)


class Vllm:
    """ids: [Hkv, n, k]."""

    key = "vllm"

    def __init__(self, case: Case, given: Operands, ops):
        cache = torch.cat([given.k, given.v], -1).transpose(1, 2).contiguous()  # [pages, Hkv, 128, 2 dh]
        most, heads, new = max(case.lengths), case.kv_heads, max(case.new)
        before = given.lengths - given.cu_q.diff()
        out, scale = torch.empty_like(given.q), case.head_dim ** -0.5
        where = given.page_table, given.lengths

        def select():
            if case.is_decoded:
                return ops.minimax_m3_index_decode(given.index_q, given.index_k, *where, most, case.top_k, 0, 1, heads,
                                                   new, new)
            scores = ops.minimax_m3_index_score(given.index_q, given.index_k, given.page_table, given.cu_q, given.lengths,
                                                before, new, most, heads)
            return ops.minimax_m3_index_topk(scores, given.cu_q, before, new, case.top_k, 0, 1)

        def attend(ids):
            if case.is_decoded:
                ops.minimax_m3_sparse_attn_decode(given.q, cache, ids, *where, heads, scale, out, new)
            else:
                ops.minimax_m3_sparse_attn(given.q, cache, ids, given.page_table, given.cu_q, given.lengths, before, new,
                                           heads, scale, out)
            return out

        self.select, self.attend = select, attend


def time_us(call, device: str):
    return 1e3 * statistics.median(device_ms(call, device, runs=5, warm_up=1, calls=10, asleep=True))


def times_of(side, ids, device: str) -> dict:
    calls = {"select": side.select, "attend": lambda: side.attend(ids), "layer": lambda: side.attend(side.select())}
    return {f"{side.key}_{name}_us": time_us(call, device) for name, call in calls.items()}


def union_of(ids, case: Case) -> float:
    """Mean number of blocks that a tile of a group selects."""
    sizes = []
    for begin in range(0, ids.shape[0], TILE):
        for head in range(case.kv_heads):
            some = ids[begin:begin + TILE, head].unique()
            sizes.append((some >= 0).sum().item())
    return statistics.mean(sizes)


def measure(case: Case, selection: str, device: str) -> dict:
    row = {"case": case.name, "operands": selection}
    given = Operands(case, selection, device)
    ours = Ours(case, given)
    ids = ours.select()
    want = ours.attend(ids)
    if len(case.lengths) == 1:
        row["union"] = union_of(ids, case)
    row |= times_of(ours, ids, device)
    try:
        ops = import_module("vllm.models.minimax_m3.common.ops")
    except ImportError as error:
        return row | {"skipped": f"not installed: {error}"}
    try:
        theirs = Vllm(case, given, ops)
        found = theirs.select()
        row["other_ids"] = other_ids(ids, found.transpose(0, 1))
        if not row["other_ids"] <= MOST_OTHER:
            raise ValueError(f"{row['other_ids']:.2%} of its ids are others")
        same = ids.transpose(0, 1).contiguous()
        row["off"] = (theirs.attend(same) - want).abs().max().item()
        keys = given.k.flatten(0, 1), given.v.flatten(0, 1)
        if not row["off"] <= farthest(case, given.q, *keys, "the selected blocks"):
            raise ValueError(f"its output is off ours by {row['off']:.2g}")
        row |= times_of(theirs, found, device)
    except Exception as error:  # whatever it is, the others remain
        row["skipped"] = f"{type(error).__name__}: {str(error).strip()}".split("\n")[0]
    return row


def vllm_version() -> str | None:
    try:
        return version("vllm")
    except PackageNotFoundError:
        return None


def report(row: dict) -> str:
    ours, theirs = row["msalab_layer_us"], row.get("vllm_layer_us")
    text = f"{row['case']:32}{row['operands']:8}{ours:10.1f} us"
    if theirs:
        return f"{text}, vLLM {theirs:10.1f} us, {theirs / ours:.1f} times as long"
    return f"{text}, vLLM: {row['skipped']}"


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="record, JSON")
    parser.add_argument("--only", default="", help="cases whose names this regular expression finds")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--commit", default="unknown", help="of the kernels, for the record")
    parser.add_argument("--small", action="store_true", help="one small case on the CPU")
    options = parser.parse_args(arguments)
    device, cases = ("cpu", SMALL) if options.small else ("cuda", CASES)
    cases = [case for case in cases if re.search(options.only, case.name)]
    if not cases:
        parser.error(f"--only is {options.only}, which no case's name has")
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU; --small takes the CPU")
    if options.out:
        options.out.unlink(missing_ok=True)
    record = Record(options.out, "bench/serving_rivals.py", "Shapes of serving beside vLLM's kernels of MiniMax-M3", SHAPES, {
        "vllm": vllm_version(), "torch": torch.__version__, "device": device_name() if device == "cuda" else "cpu",
        "commit": options.commit})
    end = time.monotonic() + options.seconds
    for case in cases:
        for selection in ("random", "alike") if max(case.new) > 1 else ("random",):
            if time.monotonic() > end:
                break
            row = measure(case, selection, device)
            record.put("layers", row)
            print(report(row), flush=True)
            if device == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
