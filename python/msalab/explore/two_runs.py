# SPDX-License-Identifier: MIT
"""Which runs may stand beside each other: of the same queries, in the same blocks."""

from __future__ import annotations

import numpy as np

from ..plots.results import Results, ResultsError

MARK = " (B)"  # behind the name of a selector of the second run
SAME = 1e-3  # relative: so far apart are the entropies of dense attention, in nats, of equal activations at most


def require_comparable(a: Results, b: Results) -> list[int]:
    """The layers that both have. ResultsError names what the second is of that the first is not."""
    def refuse(what, of_a, of_b):
        raise ResultsError(f"{b.path}: {what} {of_b}, {a.path} {of_a}: only runs of one text, in the same blocks and of "
                           "the same queries, are compared")

    (data_a, of_a), (data_b, of_b) = (
        ([(of.get("model"), of.get("tokens"), of.get("sequences")) for of in run.run_json("captures")],
         ", ".join(f"{of.get('model') or of.get('input')} with {of.get('tokens')} tokens"
                   for of in run.run_json("captures"))) for run in (a, b))
    if data_a and data_b and data_a != data_b:
        refuse("is of", of_a, of_b)
    layers = [layer for layer in a.layers if layer in b.layers]
    if not layers:
        refuse("has layers", a.layers, b.layers)
    for layer in layers:
        sizes_a, sizes_b = a.sizes(layer), b.sizes(layer)
        for name in ("block_size", "tokens", "blocks", "query_heads", "kv_heads"):
            of = [getattr(sizes, name) for sizes in (sizes_a, sizes_b)]
            if of[0] != of[1]:
                refuse(f"layer {layer} has {name.replace('_', ' ')}", *of)
        tokens = [run.queries(layer).token for run in (a, b)]
        if not np.array_equal(*tokens):
            refuse(f"layer {layer} has other queries,", *(f"{len(of)} from token {of[0]} to {of[-1]}" for of in tokens))
        if set(a.run_json("inputs").values()) & set(b.run_json("inputs").values()):
            continue
        if a.top_k(a.selectors[0], layer) != b.top_k(b.selectors[0], layer):  # then averages are over other queries
            refuse("is of other files,", *(", ".join(run.run_json("inputs")) or "unknown ones" for run in (a, b)))
        entropies = [run.metric("dense", layer, "entropy") for run in (a, b)]
        if not np.allclose(*entropies, rtol=SAME, atol=SAME, equal_nan=True):
            refuse(f"layer {layer} is of other activations, with an entropy of dense attention of",
                   *(f"{of.mean():.3f}" for of in entropies))
    return layers


def options_apart(a: Results, b: Results) -> str:
    """Which options differ, as "forced first 0, then 1"; empty where none does or they are not known."""
    first, second = (run.run_json("options") for run in (a, b))
    names = [name for name in first if name in second and first[name] != second[name] and name not in ("input", "out")]
    return "; ".join(f"{name.replace('_', ' ')} {_text(first[name])}, then {_text(second[name])}" for name in names)


def _text(value) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
