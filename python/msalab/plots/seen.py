# SPDX-License-Identifier: MIT
"""In words what is seen in a picture, from its table, for those who do not see it."""

from __future__ import annotations

import numpy as np

from ..table import Table

MOST = 6  # series that are named
_OF_SERIES = ("selector", "order", "source", "baseline", "part", "metric", "quantity", "series")
_BESIDE = ("_low", "_high")


def _text(value) -> str:
    return value if isinstance(value, str) else f"{value:.3g}" if isinstance(value, float) else str(value)


def _label(name: str) -> str:
    return name.replace("_", " ")


def seen(table: Table) -> str:
    """The range of each series; of a map of cells the largest one and where it is. Empty for an empty table."""
    numbers = [name for name, values in table.columns.items() if values.dtype.kind == "f" and
               not name.endswith(_BESIDE) and np.isfinite(values).any()]
    if not len(table) or not numbers:
        return ""
    if {"query_block", "key_block"} <= set(table.columns):
        return _of_map(table, numbers[-1])
    series = next((name for name in _OF_SERIES if name in table.columns and len(set(table[name].tolist())) > 1), None)
    shown = numbers[-2:] if series is None else numbers[-1:]
    if series is None:
        return "; ".join(f"{_label(name)} from {_range(table[name])}" for name in shown) + "."
    names = list(dict.fromkeys(table[series].tolist()))
    words = [f"{name} {_range(table.where(**{series: name})[shown[0]])}" for name in names[:MOST]]
    rest = f", and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"{_label(shown[0])}: {'; '.join(words)}{rest}."


def _range(values: np.ndarray) -> str:
    known = values[np.isfinite(values)]
    if not len(known):
        return "unknown"
    low, high = _text(float(known.min())), _text(float(known.max()))
    return low if low == high else f"{low} to {high}"


def _of_map(table: Table, value: str) -> str:
    """Which key blocks far from the queries have most, of each group."""
    words = []
    for group in sorted(set(table["group"].tolist())):
        of = table.where(group=group)
        far = of["query_block"] > of["key_block"] + of["blocks_per_cell"]
        if far.any():
            keys, at = np.unique(of["key_block"][far], return_inverse=True)
            sums = np.bincount(at.ravel(), np.nan_to_num(of[value][far]))
            most = int(np.abs(sums).argmax())
            words.append(f"group {group} block {keys[most]}")
    least_most = _range(table[value])
    return f"{_label(value)} of blocks from {least_most}" + (
        f"; away from the diagonal most at key blocks: {', '.join(words)}." if words else ".")
