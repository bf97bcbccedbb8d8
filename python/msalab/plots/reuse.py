# SPDX-License-Identifier: MIT
"""What layers lose with the ids of an earlier one: the summary.json of `msa-reuse`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from . import style
from .cost import read_json
from .results import ResultsError
from .table import Table

MEASURES = ("mass_kept", "mass_lost", "block_recall", "own_recall", "output_error")
_ESTIMATES = tuple(f"{name}{end}" for name in MEASURES for end in ("", "_low", "_high"))


@dataclass(frozen=True)
class Sharing:
    pairs: Table      # one row per source and target, a layer with its own ids among them
    distances: Table  # means over the pairs at one distance
    patterns: Table   # own ids, those asked for, and the best of each number of computing layers
    chosen: int | None  # the row of the pattern with which every layer reaches the target, else the
    every_layer: bool   # mean; None: no pattern does
    target: str       # "lose 0.01"
    selector: str
    where: str        # "prefill of 131072 tokens on h100"
    definitions: dict[str, str]


def _number(value) -> float:
    return math.nan if value is None else float(value)


def _estimates(of: dict) -> list[float]:
    return [_number(of[name][end]) for name in MEASURES for end in ("value", "low", "high")]


def _listed(layers) -> str:
    return " ".join(str(int(layer)) for layer in layers)


def _pattern(of: dict, is_best: bool) -> list:
    return [str(of["name"]), len(of["computing_layers"]), _listed(of["computing_layers"]),
            *_estimates(of), _number(of["most_lost"]), of["cost"]["seconds"],
            of["cost"]["share_of_own"], of["saved"]["seconds"], of["saved"]["flops"],
            of["saved"]["bytes"], is_best]


def read_sharing(path) -> Sharing:
    summary = read_json(path, "msa-reuse-summary")
    if not summary["pairs"] or not summary["distances"]:
        raise ResultsError(f"{path}: has no pairs of layers")
    pairs = Table.from_rows(("source", "target", "distance", *_ESTIMATES),
                            ([*(int(pair[name]) for name in ("source", "target", "distance")),
                              *_estimates(pair)] for pair in summary["pairs"]))
    distances = Table.from_rows(("distance", "pairs", *_ESTIMATES),
                                ([int(at["distance"]), int(at["pairs"]), *_estimates(at)]
                                 for at in summary["distances"]))
    rows = [_pattern(summary["own"], False),
            *(_pattern(pattern, False) for pattern in summary["patterns"]),
            *(_pattern(pattern, True) for pattern in summary["front"])]
    shown = summary["each"] or summary["mean"]
    if shown:
        rows.append(_pattern(shown, False))
    patterns = Table.from_rows(
        ("pattern", "computing", "computing_layers", *_ESTIMATES, "most_lost", "seconds",
         "share_of_own", "saved_seconds", "saved_flops", "saved_bytes", "is_best"), rows)
    (name, value), = summary["target"].items()
    options = summary["options"]
    return Sharing(pairs, distances, patterns, len(rows) - 1 if shown else None,
                   summary["each"] is not None, f"{name} {value:g}", str(options["selector"]),
                   f"{options['phase']} of {options['context']} tokens on {options['hardware']}",
                   {name: str(text) for name, text in summary["definitions"].items()})
