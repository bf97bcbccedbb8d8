# SPDX-License-Identifier: MIT
"""What the page holds of a run: numbers as JSON, and of each layer one packed piece.

The piece of a layer, deflated, in base64, holds one after the other, in bytes:
- positions uint32 [Nq]: of the queries that the page has, in their sequence;
- for each selector bits [Hkv, B, ceil(Nq / 8)]: bit n % 8 of byte n / 8 says that query n chose the block;
- where probabilities are known, mass [Hkv, B, Nq]: a byte v stands for the probability (v / 255)^2;
- where those of single tokens are, too, tokens [Hkv, N]: v stands for most * (v / 255)^2, most of the group.
"""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..plots.results import Results, ResultsError
from .activations import Activations, attention
from .two_runs import MARK, options_apart, require_comparable

MOST_BYTES = 12_000_000  # of all layers together, before they are deflated
SINK = 0.05  # mean probability on the first token from which a layer has a sink, as in the programs


@dataclass(frozen=True)
class Microscope:
    about: dict  # of the whole page, as JSON has it
    pieces: dict[int, str]  # by layer


def most_telling(results: Results, layers) -> int:
    """The layer to begin with: the one with the strongest sink; where none has one, the one where the selectors differ
    most in the mass that they keep."""
    sinks = {layer: np.nan_to_num(results.average("dense", layer, "sink_mass")) for layer in layers}
    if max(sinks.values()) >= SINK:
        return max(layers, key=sinks.get)

    def differ(layer):
        kept = [results.average(name, layer, "mass_kept") for name in results.selectors]
        return -1 if any(map(math.isnan, kept)) else max(kept) - min(kept)

    return max(layers, key=differ)


def longest_sequence(results: Results, layer: int) -> int:
    """That with most analysed queries."""
    values, counts = np.unique(results.queries(layer).sequence, return_counts=True)
    return int(values[counts.argmax()])


class Chosen(NamedTuple):
    """A selector of a run, under the name that the page has for it."""

    name: str
    run: Results  # of its blocks
    averages: Results
    selector: str


def chosen_of(results: Results, whole: Results, beside: Results | None, layers) -> list[Chosen]:
    """The selectors of the run, then those of the run beside it; its oracle only where it chose other blocks."""
    found = [Chosen(name, whole, results, name) for name in whole.selectors if name in results.selectors]
    for name in beside.selectors if beside else ():
        if name != "oracle" or name not in results.selectors or any(
                not np.array_equal(whole.ids(name, layer)[:], beside.ids(name, layer)[:]) for layer in layers):
            found.append(Chosen(name + MARK, beside, beside, name))
    return found


def make_microscope(results: Results, whole: Results | None = None, activations: Activations | None = None,
                    layers=None, note=lambda line: None, beside: Results | None = None) -> Microscope:
    """results: of the averages. whole: the same of more queries, to take the blocks from. layers: default: all.
    beside: another run on the same queries, to show beside the first."""
    results.require_layers(layers or ())
    whole = whole or results
    layers = [layer for layer in layers or results.layers if layer in whole.layers]
    if beside:
        layers = [layer for layer in require_comparable(whole, beside) if layer in layers]
    selectors = chosen_of(results, whole, beside, layers)
    if not layers or not selectors:
        raise ResultsError(f"{whole.path}: has no layer or no selector of {results.path}")
    sequence = longest_sequence(whole, layers[0])
    step = query_step(whole, layers, sequence, selectors)
    pieces, by_layer = {}, []
    for layer in layers:
        piece, about = _piece(whole, layer, selectors, sequence, step, activations)
        pieces[layer] = packed(piece)
        by_layer.append({**about, **overview(selectors, layer)})
        note(f"layer {layer}: {about['queries']} queries")
    sizes, text = whole.sizes(layers[0]), activations and activations.text(sequence)
    captures = results.run_json("captures")
    lengths = np.diff(text.ends, prepend=0).astype(np.uint16).tobytes() if text else b""
    about = {
        "model": ", ".join(dict.fromkeys(of["model"] for of in captures if of.get("model"))),
        "blockSize": sizes.block_size, "topK": whole.top_k(selectors[0].selector, layers[0]),
        "groups": sizes.kv_heads, "heads": sizes.query_heads, "sequence": sequence, "sequences": whole.sequences,
        "tokens": tokens_of(whole, layers[0], sequence, activations), "selectors": [of.name for of in selectors],
        "beside": beside and {"a": str(whole.path), "b": str(beside.path), "apart": options_apart(results, beside)},
        "step": step, "analysed": len(whole.queries(layers[0]).token), "layers": by_layer,
        "first": most_telling(results, [layer for layer in layers if layer in results.full_layers] or layers),
        "text": text.text if text else "", "lengths": packed(lengths)}
    return Microscope(about, pieces)


def packed(content: bytes) -> str:
    return base64.b64encode(zlib.compress(content, 9)).decode()


def tokens_of(results: Results, layer: int, sequence: int, activations: Activations | None) -> int:
    """Of the sequence; from results alone what its last analysed query sees."""
    if activations:
        return activations.tokens(sequence)
    if results.sequences == 1:
        return results.sizes(layer).tokens
    queries = results.queries(layer)
    return int(queries.position[queries.rows_of(sequence)][-1]) + 1


def query_step(results: Results, layers, sequence: int, selectors) -> int:
    """Every so-manieth analysed query is in the page, so that all its layers together stay below MOST_BYTES."""
    a_query = sum(results.sizes(layer).kv_heads * results.sizes(layer).blocks * (1 + len(selectors) / 8)
                  for layer in layers)
    rows = results.queries(layers[0]).rows_of(sequence)
    return max(1, math.ceil((rows.stop - rows.start) * a_query / MOST_BYTES))


def _piece(results: Results, layer: int, selectors, sequence: int, step: int, activations):
    rows = results.queries(layer).rows_of(sequence)
    if rows.start == rows.stop:
        raise ResultsError(f"{results.path}: layer {layer} has no queries of sequence {sequence}")
    taken = slice(rows.start, rows.stop, step)
    positions, sizes = results.queries(layer).position[taken], results.sizes(layer)
    found = activations and activations.layer(layer, sequence)
    seen = attention(*found, positions, sizes.block_size) if found else None
    mass = seen.mass if found else results.mass(layer, taken)
    blocks = int(positions[-1]) // sizes.block_size + 1
    parts = [positions.astype("<u4").tobytes()]
    parts += [_bits(of.run.ids(of.selector, layer)[taken], blocks) for of in selectors]
    most = []
    if mass is not None:
        parts.append(_bytes(mass[:, :, :blocks].transpose(1, 2, 0)))
    if found:
        most = seen.tokens.max(1).tolist()
        parts.append(_bytes(seen.tokens / seen.tokens.max(1, keepdims=True)))
    about = {"layer": layer, "queries": len(positions), "blocks": blocks, "window": results.window(layer),
             "hasMass": mass is not None, "tokens": seen.tokens.shape[1] if found else 0, "most": most}
    return b"".join(parts), about


def _bits(ids: np.ndarray, blocks: int) -> bytes:
    """ids [Nq, Hkv, k] -> bits [Hkv, blocks, ceil(Nq / 8)]"""
    chosen = np.zeros((ids.shape[1], blocks, len(ids)), bool)
    query, group, slot = np.nonzero(ids >= 0)
    chosen[group, ids[query, group, slot], query] = True
    return np.packbits(chosen, axis=2, bitorder="little").tobytes()


def _bytes(probability: np.ndarray) -> bytes:
    return np.rint(255 * np.sqrt(np.clip(np.nan_to_num(probability), 0, 1))).astype(np.uint8).tobytes()


def _known(values) -> list:
    """JSON has no NaN."""
    return [None if math.isnan(value) else round(float(value), 4) for value in values]


def overview(selectors: list[Chosen], layer: int) -> dict:
    """What the cells of layers and groups are coloured by: means over the counted queries."""
    results = selectors[0].averages
    sink = results.metric("dense", layer, "sink_mass").reshape(results.sizes(layer).kv_heads, -1).mean(1)
    return {"sink": _known(sink),
            **{metric: {of.name: _known(of.averages.metric(of.selector, layer, metric)) for of in selectors}
               for metric in ("mass_kept", "block_recall")}}
