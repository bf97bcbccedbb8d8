# SPDX-License-Identifier: MIT
"""msalab diff A B: how do the selected blocks of two systems or runs differ, why, and what does it cost?

A and B are results of msa-analyze or msa-compare (results.h5), or what an engine or a trainer wrote (npz): `ids`
[n, Hkv, k] of one layer, or `ids_<layer>` of each, in any order, padded anywhere with negative numbers, and where they
are not all the first tokens, `tokens` [n], the packed token of each row. Rows that both have are compared.

With --activations, whose index_q and index_k both selected from, a row that differs does so by
  tie        the blocks that one has in place of the other's score the same
  rounding   within what rounding may change of scores (core/tolerance.h; --scores says in which type they are kept)
  rule       one keeps the local or the first blocks, or fills its slots, and the other does not
  neither    none of these: what remains is a fault, or operands that are not the same
and with q, k and v it is said what the difference costs: the probability of dense attention that the blocks of each
hold, and how far the outputs are apart. Rows whose order alone differs are counted apart; attention does not see it.
"""

import json
import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np

from .arguments import CommandLine, distinct_integers
from .conform.bounds import STORED, gamma
from .ending import Refusal, ended

SEEN = 4096  # of rows that differ, so many are looked at, evenly spaced
KINDS = ("tie", "rounding", "rule", "neither")


class DiffError(Refusal):
    """A file does not hold what is needed; the message names it."""


@dataclass
class Ids:
    """Of one layer, rows ascending and padded with -1 in `sets`, as they were in `rows`."""

    rows: np.ndarray
    tokens: np.ndarray
    block_size: int | None = None

    @property
    def sets(self):
        most = np.iinfo(np.int64).max
        found = np.sort(np.where(self.rows < 0, most, self.rows.astype(np.int64)), axis=2)
        return np.where(found == most, -1, found)


@dataclass
class Finding:
    """Of one layer. Counts are of rows (query, group); None: not known without --activations."""

    layer: int
    rows: int
    order: int
    differ: int
    tie: int | None
    rounding: int | None
    rule: int | None
    neither: int | None
    ids: int  # blocks that A has and B has not, and the other way round, over two
    mass_a: float | None = None  # of the rows that differ and were looked at
    mass_b: float | None = None
    output: float | None = None  # |out A - out B| / |out A|, mean over their heads
    seen: int = 0
    first: str = ""  # the first row that differs by neither, or the first that differs


def as_ids(path, name, ids, tokens, block_size=None):
    if ids.ndim != 3 or ids.dtype.kind not in "iu":
        raise DiffError(f"{path}: {name} is {ids.dtype} {list(ids.shape)}, must be integers [n, Hkv, k]")
    tokens = np.arange(len(ids)) if tokens is None else np.asarray(tokens)
    if tokens.shape != (len(ids),) or tokens.dtype.kind not in "iu":
        raise DiffError(f"{path}: tokens of {name} are {tokens.dtype} {list(tokens.shape)}, must be integers "
                        f"[{len(ids)}]")
    if len(np.unique(tokens)) < len(tokens):
        raise DiffError(f"{path}: tokens of {name} hold one twice")
    found = Ids(ids, tokens, block_size)
    sets = found.sets
    twice = (sets[:, :, 1:] == sets[:, :, :-1]) & (sets[:, :, 1:] >= 0)
    if twice.any():
        row, group, slot = np.argwhere(twice)[0]
        raise DiffError(f"{path}: {name}[{row}, {group}] holds block {sets[row, group, slot]} twice")
    return found


def read(path, selector):
    """Layer -> Ids of a file; layer None of an npz that has one."""
    if not Path(path).exists():
        raise DiffError(f"{path}: no such file")
    if Path(path).suffix == ".npz":
        return read_npz(path)
    import h5py

    from .hdf5 import checked
    try:
        file = h5py.File(path, "r")
    except OSError:
        raise DiffError(f"{path}: is neither an HDF5 file nor called .npz") from None
    with file:
        selectors = list(file.get("select", {}))
        if not selectors:
            raise DiffError(f"{path}: has no /select")
        selector = selector or ("index" if "index" in selectors else selectors[0])
        if selector not in selectors:
            raise DiffError(f"{path}: has no selector {selector}; there are: {', '.join(selectors)}")
        found = {}
        for layer in file[f"select/{selector}"]:
            names = f"select/{selector}/{layer}/ids", f"queries/{layer}/token"
            ids, tokens = (checked(file[name], file, f"{path}: /{name}", DiffError)[:] if name in file else None
                           for name in names)
            if ids is None:
                raise DiffError(f"{path}: has no /{names[0]}")
            size = file[f"layers/{layer}"].attrs.get("block_size") if f"layers/{layer}" in file else None
            found[int(layer)] = as_ids(path, f"/{names[0]}", ids, tokens, None if size is None else int(size))
        return found


def read_npz(path):
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise DiffError(f"{path}: {error}") from None
    tokens = arrays.get("tokens")
    if "ids" in arrays:
        return {None: as_ids(path, "ids", arrays["ids"], tokens)}
    found = {int(name[4:]): as_ids(path, name, arrays[name], tokens) for name in arrays
             if name.startswith("ids_") and name[4:].isdecimal()}
    if not found:
        raise DiffError(f"{path}: has neither ids nor ids_<layer>; it has: {', '.join(arrays) or 'nothing'}")
    return found


def pairs(a, b, layers):
    """(layer, Ids of A, Ids of B); what has no number goes with each of the other's."""
    if None in a and None in b:
        return [(0 if not layers else layers[0], a[None], b[None])]
    numbers = sorted((set(a) or set(b)) - {None} if None in b else (set(b) - {None} if None in a else set(a) & set(b)))
    numbers = [number for number in numbers if not layers or number in layers]
    if not numbers:
        raise DiffError("A and B have no layer in common")
    if (None in a or None in b) and len(numbers) > 1:
        raise DiffError(f"one file has ids of one layer, the other of layers {', '.join(map(str, numbers))}: --layers "
                        "says which is meant")
    return [(number, a.get(number, a.get(None)), b.get(number, b.get(None))) for number in numbers]


class Layer:
    """What is computed in float64 of a layer of a capture."""

    def __init__(self, layer, cu_seqlens, size):
        self.layer, self.size = layer, size
        self.cu = np.asarray(cu_seqlens)
        self.has_index = layer.index_q is not None
        self.has_cost = all(getattr(layer, name) is None
                            for name in ("sliding_window", "attention_chunk", "softcap", "sinks"))

    def place(self, token):
        """(first token of its sequence, tokens that it sees)"""
        first = int(self.cu[np.searchsorted(self.cu, token, "right") - 1])
        return first, int(token) - first + 1

    def scores(self, token, group):
        """The score of each visible block, and the most that rounding in float32 may change one."""
        first, count = self.place(token)
        row = np.asarray(self.layer.index_q[token, group], np.float64)
        keys = np.asarray(self.layer.index_k[first:first + count], np.float64)
        scale = len(row) ** -0.5
        starts = np.arange(0, count, self.size)
        bound = gamma(len(row) + 3) * scale * np.linalg.norm(row) * np.linalg.norm(keys, axis=1).max()
        return np.maximum.reduceat(scale * (keys @ row), starts), float(bound)

    def cost(self, token, group, a, b):
        """(probability of dense attention on the blocks of a, on those of b, relative error of b's output)."""
        first, count = self.place(token)
        q, k, v = (np.asarray(array, np.float64) for array in (
            self.layer.q[token], self.layer.k[first:first + count, group], self.layer.v[first:first + count, group]))
        heads = q.shape[0] // self.layer.k.shape[1]
        logits = self.layer.softmax_scale * (q[group * heads:(group + 1) * heads] @ k.T)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        block = np.arange(count) // self.size
        masks = [np.isin(block, list(blocks)) for blocks in (a, b)]
        mass = [(weights[:, mask].sum(1) / weights.sum(1)).mean() for mask in masks]
        outs = [(weights * mask) @ v / np.maximum((weights * mask).sum(1, keepdims=True), 1e-300) for mask in masks]
        error = np.linalg.norm(outs[0] - outs[1], axis=1) / np.maximum(np.linalg.norm(outs[0], axis=1), 1e-300)
        return (*mass, error.mean())


def rule_of(a, b, blocks, k, forced_first, forced_local):
    """The rule that one row keeps and the other does not; empty: none."""
    local = set(range(max(0, blocks - forced_local), blocks))
    first = set(range(min(forced_first, blocks)))
    for name, forced in (("local block", local), ("first blocks", first)):
        if (forced <= a) != (forced <= b):
            return name
    if (a < b or b < a) and max(len(a), len(b)) <= min(k, blocks):
        return "slots left empty"
    return ""


def why(layer, token, group, a, b, k, options):
    """(one of KINDS, the words of it); without index_q and index_k all that is no rule is `neither`."""
    _, count = layer.place(token)
    blocks = -(-count // layer.size)
    outside = [block for block in a | b if block >= blocks]
    if outside:
        return "neither", f"block {outside[0]} is not visible: there are {blocks}"
    rule = rule_of(a, b, blocks, k, options.forced_first, options.forced_local)
    if rule:
        return "rule", rule
    if not layer.has_index:
        return "neither", f"A has {sorted(a)}, B {sorted(b)}"
    scores, bound = layer.scores(token, group)
    lost, gained = scores[sorted(a - b)], scores[sorted(b - a)]
    gap = max(lost.max(initial=-np.inf) - gained.min(initial=np.inf),
              gained.max(initial=-np.inf) - lost.min(initial=np.inf))
    said = (f"A alone has {', '.join(f'{b_} (score {scores[b_]:.6g})' for b_ in sorted(a - b)) or 'none'}, B alone "
            f"{', '.join(f'{b_} (score {scores[b_]:.6g})' for b_ in sorted(b - a)) or 'none'}")
    if len(lost) == len(gained) and gap == 0:
        return "tie", said
    kept = STORED[options.scores] * np.abs(scores).max() if options.scores != "float32" else 0.0
    if len(lost) == len(gained) and gap <= 2 * (bound + kept):
        return "rounding", said
    return "neither", said


def compare(number, a, b, layer, options):
    """The finding of a layer; `layer`: its operands, or None."""
    if a.rows.shape[1] != b.rows.shape[1]:
        raise DiffError(f"layer {number}: A has {a.rows.shape[1]} groups, B {b.rows.shape[1]}")
    tokens, at_a, at_b = np.intersect1d(a.tokens, b.tokens, return_indices=True)
    if not len(tokens):
        raise DiffError(f"layer {number}: A and B have no token in common")
    if layer is not None and tokens[-1] >= layer.cu[-1]:
        raise DiffError(f"layer {number}: ids are of token {tokens[-1]}, the activations have {layer.cu[-1]}")
    k = max(a.rows.shape[2], b.rows.shape[2])

    def padded(rows):
        empty = (0, 0), (0, 0), (0, k - rows.shape[2])
        return np.pad(np.maximum(rows.astype(np.int64), -1), empty, constant_values=-1)

    wide = padded(a.sets[at_a]), padded(b.sets[at_b])
    differ = (wide[0] != wide[1]).any(2)
    order = (padded(a.rows[at_a]) != padded(b.rows[at_b])).any(2) & ~differ
    places = np.argwhere(differ)
    taken = sum(len(set(wide[0][i, r]) ^ set(wide[1][i, r]) - {-1}) for i, r in places)
    found = Finding(number, differ.size, int(order.sum()), len(places), None, None, None, None, int(round(taken / 2)))
    places = places[np.unique(np.linspace(0, max(len(places) - 1, 0), min(SEEN, len(places))).astype(int))]
    found.seen = len(places)
    counts, costs, first = dict.fromkeys(KINDS, 0), [], {}
    for i, r in places:
        one, other = (set(map(int, rows[i, r])) - {-1} for rows in wide)
        if layer is None:
            kind, said = None, f"A has {sorted(one)}, B {sorted(other)}"
        else:
            kind, said = why(layer, tokens[i], r, one, other, k, options)
            counts[kind] += 1
            if layer.has_cost:
                costs.append(layer.cost(tokens[i], r, one, other))
        first.setdefault(kind, f"token {tokens[i]}, group {r}: {said}")
    if layer is not None:
        for kind in KINDS if layer.has_index else ("rule",):
            setattr(found, kind, counts[kind])
    if costs:
        found.mass_a, found.mass_b, found.output = map(float, np.mean(costs, axis=0))
    found.first = first.get("neither", first.get(None, next(iter(first.values()), "")))
    return found


def print_table(findings, out):
    names = ("layer", "rows", "order", "differ", *KINDS, "ids", "mass A", "mass B", "output")
    print("".join(f"{name:>10}" for name in names), file=out)
    for one in findings:
        values = [getattr(one, field.name) for field in fields(one)][:len(names)]
        print("".join(f"{'-' if value is None else f'{value:.4g}' if isinstance(value, float) else value:>10}"
                      for value in values), file=out)
    for one in findings:
        if one.seen < one.differ:
            print(f"layer {one.layer}: tie to output are of {one.seen} of the rows that differ", file=out)
        if one.first:
            print(f"layer {one.layer}, the first{' by neither' if one.neither else ''}: {one.first}", file=out)


def main(arguments=None) -> int:
    parser = CommandLine(prog="msalab diff", description=__doc__,
                         example="msalab diff results.h5 engine.npz --activations capture.h5")
    parser.add_argument("a", metavar="A", type=Path)
    parser.add_argument("b", metavar="B", type=Path)
    parser.add_argument("--activations", type=Path, help="the msa-activations file that both selected from")
    parser.add_argument("--selectors", help="of results: one for both, or A's and B's with a comma between; default: "
                        "index, else the first there is")
    parser.add_argument("--layers", type=distinct_integers, help="numbers, as 3,7")
    parser.add_argument("--block-size", type=int, help="default: that of the results, else 128")
    parser.add_argument("--forced-first", type=int, default=0)
    parser.add_argument("--forced-local", type=int, default=1)
    parser.add_argument("--scores", choices=("float32", "bfloat16", "float16"), default="float32",
                        help="the type that one of them keeps scores in before it compares them (float32)")
    parser.add_argument("--json", action="store_true", help="the table as JSON")
    options = parser.parse_args(arguments)
    return ended(lambda: work(options), options)


def work(options):
    chosen = (options.selectors or "").split(",")
    a, b = read(options.a, chosen[0]), read(options.b, chosen[-1])
    findings = []
    for number, one, other in pairs(a, b, options.layers):
        size = options.block_size or one.block_size or other.block_size or 128
        findings.append(compare(number, one, other, layer_of(options.activations, number, size), options))
    if options.json:
        print(json.dumps([asdict(one) for one in findings], indent=1))
    else:
        print_table(findings, sys.stdout)


def layer_of(path, number, size):
    if path is None:
        return None
    from .capture.reader import ActivationsReader
    with ActivationsReader(path) as file:
        return Layer(file.layer(number), file.cu_seqlens, size)
