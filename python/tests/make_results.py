# SPDX-License-Identifier: MIT
"""Writes an `msa-results` file from a tiny attention computed in numpy.

Queries and keys have a sink on token 0, a local part and one far stripe per GQA group, so that
every picture has something to show. `python make_results.py OUT.h5` writes one to look at.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import h5py
import numpy as np

DEFINITIONS = {
    "block_recall": "|I* ∩ I| / |I*|; I* = top-k blocks by mass, local block forced in",
    "mass_kept": "sum of P_b over the selected blocks, of all mass",
    **{name: f"what {name} means" for name in (
        "oracle_mass", "score_recall", "output_error", "sink_mass_dense", "sink_mass_sparse",
        "entropy_dense", "entropy_sparse", "rows_counted", "rows_trivial")},
}
RULES = {"oracle": "the blocks of highest mass", "random": "uniformly random visible blocks",
         "window": "the first block and the newest ones"}
AXES = {"ids": "query,group,slot", "queries_per_block": "group,block", "token": "query",
        "position": "query", "sequence": "query", "k": "point"}


@dataclass(frozen=True)
class Case:
    lengths: tuple[int, ...] = (384,)
    layers: tuple[int, ...] = (3, 6)
    selectors: tuple[str, ...] = ("oracle", "window", "random")
    query_heads: int = 8
    kv_heads: int = 4
    head_dim: int = 16
    block_size: int = 16
    top_k: int = 4
    stride: int = 1  # every stride-th query is analysed
    seed: int = 7


def synthetic_qk(case: Case, tokens: int, rng: np.random.Generator):
    """q [N, Hq, dh], k [N, Hkv, dh]"""
    group_size = case.query_heads // case.kv_heads
    steps = np.arange(1, case.head_dim // 2 - 1)
    angle = np.arange(tokens)[:, None] * 2.5 / 8 ** (steps / steps[-1])
    waves = np.concatenate([np.cos(angle), np.sin(angle)], 1)
    k = np.zeros((tokens, case.kv_heads, case.head_dim))
    q = np.zeros((tokens, case.query_heads, case.head_dim))
    for head in range(case.query_heads):
        group = head // group_size
        shift = (group + 1) * tokens // 9
        k[:, group, : waves.shape[1]] = waves
        k[0, group, -1] = 8
        q[:, head, : waves.shape[1]] = 3 * (waves + np.roll(waves, shift, 0))
        q[:, head, -1] = 2 + 0.6 * (head % group_size) + 0.3 * group
    return (array + 0.2 * rng.standard_normal(array.shape) for array in (q, k))


def top_blocks(score: np.ndarray, local: int, k: int) -> np.ndarray:
    """The k best of the visible blocks, the local one forced, ascending, padded with -1."""
    score = score[: local + 1].copy()
    score[local] = np.inf
    chosen = np.sort(np.argsort(-score, kind="stable")[:k])
    return np.pad(chosen, (0, k - len(chosen)), constant_values=-1)


def block_scores(selector: str, mass: np.ndarray, local: int, rng) -> np.ndarray:
    """mass [B] of one query and group -> [B]"""
    if selector == "oracle":
        return mass
    if selector == "random":
        return rng.random(len(mass))
    newest_first = np.arange(len(mass), dtype=float)
    newest_first[0] = len(mass)
    return newest_first  # window: the first block, then the newest ones


def shares(mass: np.ndarray, kept: set, best: set) -> tuple[float, float, float]:
    """Mass kept, block recall and score recall of one query and group."""
    both = sorted(kept & best)
    return mass[sorted(kept)].sum(), len(both) / len(best), mass[both].sum() / mass[sorted(best)].sum()


def entropy(probability: np.ndarray) -> float:
    seen = probability[probability > 0]
    return float(-(seen * np.log(seen)).sum())


def analyse(case: Case, q, k, v, position, rng) -> dict:
    """One sequence; the rows are the analysed queries, in the order of `position`."""
    block_size, size = case.block_size, case.query_heads // case.kv_heads
    blocks = -(-len(k) // block_size)
    budgets = np.unique(np.minimum(2 ** np.arange(12), blocks))
    rows = {selector: [] for selector in case.selectors}
    dense = []
    for i in position:
        local = i // block_size
        p = np.zeros((case.query_heads, blocks * block_size))
        for head in range(case.query_heads):
            logits = k[: i + 1, head // size] @ q[i, head] / np.sqrt(q.shape[2])
            weight = np.exp(logits - logits.max())
            p[head, : i + 1] = weight / weight.sum()
        mass = p.reshape(case.kv_heads, size, blocks, block_size).sum(3).mean(1)
        dense.append([(row[0], row[:4].sum(), row[:block_size].sum(), entropy(row)) for row in p])
        out = np.stack([p[h, : i + 1] @ v[: i + 1, h // size] for h in range(len(p))])
        oracle = [set(top_blocks(mass[g], local, case.top_k)) - {-1} for g in range(len(mass))]
        for selector in case.selectors:
            score = [block_scores(selector, mass[g], local, rng) for g in range(len(mass))]
            ids = [top_blocks(score[g], local, case.top_k) for g in range(len(mass))]
            heads, groups = [], []
            for g, chosen in enumerate(ids):
                kept = set(chosen) - {-1}
                best, both = mass[g][sorted(oracle[g])].sum(), sorted(kept & oracle[g])
                groups.append((len(both) / len(oracle[g]), mass[g][both].sum() / best,
                               mass[g][sorted(kept)].sum(), best))
                for h in range(g * size, (g + 1) * size):
                    sparse = np.where(np.isin(np.arange(p.shape[1]) // block_size, chosen), p[h], 0)
                    sparse /= sparse.sum()
                    error = sparse[: i + 1] @ v[: i + 1, g] - out[h]
                    heads.append((np.linalg.norm(error) / np.linalg.norm(out[h]), sparse[0],
                                  entropy(sparse)))
            curve = [np.mean([shares(mass[g], *(set(top_blocks(of, local, m)) - {-1} for of in (score[g], mass[g])))
                              for g in range(len(mass))], 0) for m in budgets]
            rows[selector].append((ids, groups, heads, curve, local + 1 > case.top_k))
    return {"dense": np.array(dense), "rows": rows, "budgets": budgets, "blocks": blocks}


def put(group, name: str, values, unit: str = "1"):
    data = group.create_dataset(name, data=values)
    data.attrs.update(axes=AXES.get(name, name), unit=unit, description=name)


def gini(counts: np.ndarray) -> float:
    ordered = np.sort(counts.ravel())
    rank = np.arange(1, len(ordered) + 1)
    return float(2 * (rank * ordered).sum() / (len(ordered) * ordered.sum())
                 - (len(ordered) + 1) / len(ordered))


def write_layer(file, case: Case, layer: int, rng, operands: dict):
    parts, tokens, first = [], {"token": [], "position": [], "sequence": []}, 0
    for sequence, length in enumerate(case.lengths):
        q, k = synthetic_qk(case, length, rng)
        position = np.arange(0, length, case.stride)
        v = rng.standard_normal(k.shape)
        operands.setdefault(layer, []).append((q, k, v))
        parts.append(analyse(case, q, k, v, position, rng))
        for name, values in zip(tokens, (first + position, position, 0 * position + sequence)):
            tokens[name].append(values)
        first += length
    for name, values in tokens.items():
        put(file, f"queries/{layer}/{name}", np.concatenate(values).astype(np.int64))
    file.create_group(f"layers/{layer}").attrs.update(
        query_heads=case.query_heads, kv_heads=case.kv_heads, head_dim=case.head_dim, index_dim=0,
        block_size=case.block_size, blocks=max(part["blocks"] for part in parts), tokens=first,
        softmax_scale=case.head_dim ** -0.5)
    counted = [part["dense"][position // case.block_size >= case.top_k]
               for part, position in zip(parts, tokens["position"])]
    dense = np.concatenate(counted).mean(0)
    by_group = dense.reshape(case.kv_heads, -1, 4).mean(1)
    for i, name in enumerate(("sink_mass", "sink_mass_first_tokens", "sink_mass_first_block",
                              "entropy")):
        values = by_group if name == "sink_mass_first_block" else dense
        put(file, f"metrics/dense/{layer}/{name}", values[:, i])
        file[f"metrics/dense/{layer}"].attrs[name] = values[:, i].mean()
    for selector in case.selectors:
        write_selector(file, case, layer, selector, parts)


def write_selector(file, case: Case, layer: int, selector: str, parts):
    all_rows = [row for part in parts for row in part["rows"][selector]]
    ids = np.array([row[0] for row in all_rows], np.int32)
    put(file, f"select/{selector}/{layer}/ids", ids, "block of the sequence")
    file[f"select/{selector}/{layer}/ids"].attrs["description"] = RULES[selector]
    counted = [row for row in all_rows if row[4]]
    groups, heads = (np.mean([row[i] for row in counted], 0) for i in (1, 2))
    metrics = file.create_group(f"metrics/{selector}/{layer}")
    names = ("block_recall", "score_recall", "mass_kept", "oracle_mass"), \
            ("output_error", "sink_mass_sparse", "entropy_sparse")
    for values, of in zip((groups, heads), names):
        for i, name in enumerate(of):
            put(metrics, name, values[:, i])
            metrics.attrs[name] = values[:, i].mean()
    metrics.attrs.update(rows_counted=len(counted), rows_trivial=len(all_rows) - len(counted))
    longest = max(parts, key=lambda part: part["blocks"])
    put(file, f"curves/{selector}/{layer}/k", longest["budgets"].astype(np.int64))
    curves = np.mean([row[3] for row in longest["rows"][selector] if row[4]], 0)
    for i, name in enumerate(("mass_kept", "block_recall", "score_recall")):
        put(file, f"curves/{selector}/{layer}/{name}", curves[:, i])
    ends = np.cumsum([part["blocks"] for part in parts])
    firsts = np.repeat(ends - [part["blocks"] for part in parts],
                       [len(part["rows"][selector]) for part in parts])
    counts = np.stack([np.bincount((ids[:, g] + firsts[:, None])[ids[:, g] >= 0],
                                   minlength=ends[-1]) for g in range(case.kv_heads)])
    put(file, f"popularity/{selector}/{layer}/queries_per_block", counts.astype(np.int64))
    file[f"popularity/{selector}/{layer}"].attrs.update(
        gini=gini(counts), chunks=int(np.ceil(counts / 128).sum()), mma_fill=0.75)


def make_results(path, case: Case = Case()) -> dict:
    """Returns by layer the (q, k, v) of each sequence."""
    operands = {}
    with h5py.File(path, "w") as file:
        file.attrs.update(format="msa-results", format_version=3)
        file.create_group("run").attrs.update(
            program="make_results", argv=json.dumps(["a file.h5", "--top-k", "4"]),
            commit="0" * 40, host="laptop",
            device="numpy", compiler="none", started="2000-01-01T00:00:00Z",
            finished="2000-01-01T00:00:01Z", seed=case.seed, definitions=json.dumps(DEFINITIONS),
            options=json.dumps({"block_size": case.block_size, "top_k": case.top_k}),
            inputs=json.dumps({"synthetic.h5": "0" * 64}))
        rng = np.random.default_rng(case.seed)
        for layer in case.layers:
            write_layer(file, case, layer, rng, operands)
        file.create_dataset("done", data=[f"layer {layer}" for layer in case.layers])
    return operands


def keep_everything(path):
    """Makes of the file that of a run of which no query sees more than k blocks: there are no averages."""
    with h5py.File(path, "r+") as file:
        for layer in file["layers"]:
            k = int(file["queries"][layer]["position"][:].max()) // file["layers"][layer].attrs["block_size"] + 1
            for name, of in file["metrics"].items():
                for metric, values in of[layer].items():
                    if "entropy" not in metric:
                        values[:] = of[layer].attrs[metric] = np.nan
                if name != "dense":
                    for curve in ("mass_kept", "block_recall", "score_recall"):
                        file[f"curves/{name}/{layer}/{curve}"][:] = np.nan
                    ids = file[f"select/{name}/{layer}/ids"][:]
                    del file[f"select/{name}/{layer}/ids"]
                    put(file, f"select/{name}/{layer}/ids",
                        np.pad(ids, ((0, 0), (0, 0), (0, k - ids.shape[2])), constant_values=-1))


if __name__ == "__main__":
    make_results(sys.argv[1])
