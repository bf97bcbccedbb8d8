# SPDX-License-Identifier: MIT
"""msalab check-batching FILE: does an Index Branch choose the same blocks however it is called?

The same operands are selected from in one call, and then as an engine or a program may cut them: each
sequence alone, in chunks behind their prefix, query by query as in decode, one query of every sequence at a
time, the queries in shards, and in other element types. Each way is run on every backend, and each backend
beside the first. Scores in another order of sums differ by their rounding, so ids may differ where two
blocks score nearly alike; by how much the block that is lost scored better tells rounding from a fault.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np

from . import operations as m
from .arguments import CommandLine, distinct_integers, refuse_unknown
from .capture.layer import require
from .capture.reader import ActivationsReader
from .ending import ended
from .rule import Rule

ONE_CALL = "one call"
SHARDS = 3
TYPES = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16), "f32": np.dtype(np.float32)}
INT8 = "int8"
MOST_MARGINS = 4096  # queries whose scores are looked at, the first that differ


@dataclass(frozen=True)
class Call:
    """Queries of a capture, by token, and the keys [first, end) that they are given."""

    tokens: np.ndarray
    keys: slice
    layout: m.Layout


@dataclass(frozen=True)
class Finding:
    """One layer: a way on a backend, compared with the one call of `against`."""

    layer: int
    backend: str
    way: str
    against: str
    rows: int  # (query, group)
    rows_that_differ: int
    ids_that_differ: int
    margin: float | None = None  # the most by which a lost block scored better; None: none differs
    of_scores: float | None = None  # the same, of the largest score of its row


def _on(backend, operation, q, k, *rest, scales=None, **options):
    """An operation on numpy arrays: on a GPU in their type, else, as in the programs, in float32."""
    if backend != "cuda":
        q, k = (array if array.dtype == np.int8 else array.astype(np.float32) for array in (q, k))
        return operation(q, k, *rest, scales=scales, backend=backend, **options)
    import torch

    def there(array):
        if array.dtype == TYPES["bf16"]:
            return torch.from_numpy(np.ascontiguousarray(array).view(np.uint16)).view(torch.bfloat16).cuda()
        return torch.from_numpy(np.ascontiguousarray(array)).cuda()
    scales = scales and tuple(map(there, scales))
    return operation(there(q), there(k), *rest, scales=scales, **options).cpu().numpy()


def _select(backend, rule: Rule, call: Call, index_q, index_k, element=None):
    """Ids [Nq, Hkv, k] of a call. element: one that the operands are converted to."""
    q, k, scales = index_q[call.tokens], index_k[call.keys], None
    if element == INT8:
        q, k, scales = m.store_int8(q.astype(np.float32), k.astype(np.float32), block_size=rule.block_size,
                                    layout=call.layout)
    elif element is not None:
        q, k = q.astype(TYPES[element]), k.astype(TYPES[element])
    return _on(backend, m.index_select, q, k, rule.top_k, scales=scales, forced_first=rule.forced_first,
               forced_local=rule.forced_local, block_size=rule.block_size, layout=call.layout)


def present() -> list[str]:
    """Backends that start here; cuda where PyTorch has a GPU, as its tensors are given to it."""
    def starts(name, why_not):
        if not name.startswith("cuda") or why_not:
            return not why_not
        if name != "cuda":  # variants for tests, which take no tensors
            return False
        try:
            import torch
        except ImportError:
            return False
        return torch.cuda.is_available()
    return [name for name, why_not in m.backends().items() if starts(name, why_not)]


def _beside_all_keys(cu, tokens) -> Call:
    """Some queries of packed sequences, by token, beside all keys."""
    tokens = np.asarray(tokens, np.int64)
    ends = np.searchsorted(tokens, cu).tolist()
    return Call(tokens, slice(0, cu[-1]), m.layout(ends, cu, tokens - np.repeat(cu[:-1], np.diff(ends))))


def _behind_a_prefix(begin, first, end) -> Call:
    """The queries [first, end) of the sequence from `begin`, behind its keys before them."""
    return Call(np.arange(first, end), slice(begin, end), m.layout([0, end - first], [0, end - begin]))


def ways(cu_seqlens, chunk: int, rows: int) -> dict[str, list[Call]]:
    """How the queries of the packed sequences are given, by name. chunk: queries; rows: the last ones of
    each sequence, of which decode is."""
    cu = [int(value) for value in cu_seqlens]
    spans = [(begin, end) for begin, end in zip(cu, cu[1:]) if end > begin]
    last = [range(max(begin, end - rows), end) for begin, end in spans]
    edges = np.linspace(0, cu[-1], SHARDS + 1).astype(int)
    return {
        ONE_CALL: [_beside_all_keys(cu, range(cu[-1]))],
        "each sequence alone": [_behind_a_prefix(begin, begin, end) for begin, end in spans],
        f"chunks of {chunk}": [_behind_a_prefix(begin, first, min(first + chunk, end))
                               for begin, end in spans for first in range(begin, end, chunk)],
        "decode, one query": [_behind_a_prefix(begin, token, token + 1)
                              for (begin, _), tokens in zip(spans, last) for token in tokens],
        "decode, a batch": [_beside_all_keys(cu, [tokens[step] for tokens in last if step < len(tokens)])
                            for step in range(max(map(len, last), default=0))],
        f"{SHARDS} shards": [_beside_all_keys(cu, range(first, end)) for first, end in zip(edges, edges[1:])
                             if end > first],
    }


def _margins(rule, cu, operands, wanted, found, tokens) -> tuple[float, float]:
    """The most by which the best block that a row loses scored better than the worst in its place, by the
    reference's scores, and that of the row's largest score. tokens: of the rows of `wanted` and `found`."""
    differs = (wanted != found).any(-1)
    picked = np.flatnonzero(differs.any(-1))[:MOST_MARGINS]
    few = _beside_all_keys(cu, tokens[picked])
    index_q, index_k = (array.astype(np.float32) for array in operands)
    scores = m.index_scores(index_q[few.tokens], index_k, block_size=rule.block_size, layout=few.layout,
                            backend="reference")
    largest = largest_of_scores = 0.0
    for at, query in enumerate(picked):
        for group in np.flatnonzero(differs[query]):
            before, after = (set(ids[query, group].tolist()) - {-1} for ids in (wanted, found))
            of = scores[at, group]
            gap = (max((of[block] for block in before - after), default=np.inf)
                   - min((of[block] for block in after - before), default=-np.inf))
            size = np.abs(of[np.isfinite(of)]).max(initial=0)
            largest = max(largest, float(gap))
            largest_of_scores = max(largest_of_scores, float(gap / size) if size > 0 else float(gap > 0))
    return largest, largest_of_scores


def check(layer: int, index_q, index_k, cu_seqlens, rule: Rule, backends, chunk=256, rows=16):
    """The findings of a layer's operands, index_q [N, Hkv, didx] and index_k [N, didx]. The ways of a
    backend are compared with its one call, other element types too, and its one call with that of the
    first backend."""
    cu = [int(value) for value in cu_seqlens]
    all_ways, first = ways(cu, chunk, rows), None
    operands = index_q, index_k

    def finding(backend, way, against, wanted, found, tokens):
        differ = wanted != found
        taken = sum(len(set(b) - set(a)) for a, b in zip(wanted[differ.any(-1)].tolist(),
                                                        found[differ.any(-1)].tolist()))
        by = _margins(rule, cu, operands, wanted, found, tokens) if differ.any() else (None, None)
        return Finding(layer, backend, way, against, differ.shape[0] * differ.shape[1],
                       int(differ.any(-1).sum()), taken, *by)

    for backend in backends:
        whole, = all_ways[ONE_CALL]
        one = _select(backend, rule, whole, *operands)
        if first is None:
            first = backend, one
        else:
            yield finding(backend, ONE_CALL, f"{ONE_CALL} on {first[0]}", first[1], one, whole.tokens)
        for way, calls in all_ways.items():
            if way == ONE_CALL or not calls:
                continue
            tokens = np.concatenate([call.tokens for call in calls])
            found = np.concatenate([_select(backend, rule, call, *operands) for call in calls])
            yield finding(backend, way, ONE_CALL, one[tokens], found, tokens)
        for element in (*TYPES, INT8):
            if TYPES.get(element) == index_q.dtype:
                continue
            found = _select(backend, rule, whole, *operands, element)
            yield finding(backend, f"{ONE_CALL}, {element}", ONE_CALL, one, found, whole.tokens)


def print_table(findings, out):
    print(f"{'layer':>5}  {'backend':<10}{'way':<22}{'beside':<24}{'rows':>9}{'differ':>8}{'ids':>8}"
          f"{'margin':>10}{'of scores':>11}", file=out)
    for of in findings:
        by = ("", "") if of.margin is None else (f"{of.margin:.2g}", f"{of.of_scores:.1e}")
        print(f"{of.layer:>5}  {of.backend:<10}{of.way:<22}{of.against:<24}{of.rows:>9}{of.rows_that_differ:>8}"
              f"{of.ids_that_differ:>8}{by[0]:>10}{by[1]:>11}", file=out)


def main(arguments=None) -> int:
    parser = CommandLine(prog="msalab check-batching", description=__doc__,
                         example="msalab check-batching results/fit/indexer.h5 --block-size 64 --top-k 16")
    parser.add_argument("file", type=Path, help="an msa-activations file with index_q and index_k")
    parser.add_argument("--layers", type=distinct_integers, help="numbers, as 3,7; default: all that have an Index Branch")
    parser.add_argument("--block-size", type=int, default=128)
    parser.add_argument("--top-k", type=int, default=16)
    parser.add_argument("--forced-first", type=int, default=0)
    parser.add_argument("--forced-local", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=256, help="queries of a chunk (256)")
    parser.add_argument("--rows", type=int, default=16,
                        help="last queries of each sequence that decode is checked on (16)")
    parser.add_argument("--max-tokens", type=int, help="the first sequences of so many tokens in all")
    parser.add_argument("--backends", help="names, the first of which others are compared with; default: all "
                        "that start here")
    parser.add_argument("--json", action="store_true", help="findings as JSON")
    given = parser.parse_args(arguments)
    if given.chunk < 1 or given.rows < 1:
        parser.error("--chunk and --rows must be at least 1")
    here = present()
    backends = given.backends.split(",") if given.backends else here
    absent = refuse_unknown(backends, here, "--backends names")
    if absent:
        parser.error(absent)
    return ended(lambda: _work(given, backends), given)


def _work(given, backends):
    findings = []
    rule = Rule(given.block_size, given.top_k, given.forced_first, given.forced_local)
    with ActivationsReader(given.file) as file:
        cu = np.asarray(file.cu_seqlens)
        if given.max_tokens is not None:
            cu = cu[:max(2, int(np.searchsorted(cu, given.max_tokens, "right")))]
        for number in given.layers or file.layers:
            layer = file.layer(number)
            if layer.index_q is None:
                continue
            findings += check(number, layer.index_q[:cu[-1]], layer.index_k[:cu[-1]], cu, rule, backends,
                              given.chunk, given.rows)
    require(findings, f"{given.file}: no layer has index_q and index_k; msa-fit-indexer makes them")
    if given.json:
        print(json.dumps([vars(of) for of in findings], indent=2))
        return
    print_table(findings, sys.stdout)
    print("\nrows: (query, group); differ: rows whose ids are others; ids: blocks that came in place of others; "
          "margin: the most by\nwhich a lost block had scored better than the one in its place; of scores: that of "
          "the row's largest score.")
