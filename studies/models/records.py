# SPDX-License-Identifier: MIT
"""Records of the study: the summary.json of a program (msa-report 1) with the columns that the page reads. Those of a
model at one context lie in one compressed archive, MODEL/CONTEXT.json.xz: an object of records by KIND-PIECE, each table
column by column."""

from __future__ import annotations

import fcntl
import json
import lzma
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msalab.results import ENDS, Report

FOLDER = Path(__file__).parent / "records"
DIGITS = 5  # of a number; intervals are wider
# Of each piece the tables and columns that are kept; a table that a program leaves out is left out.
COLUMNS = {
    "keeps": {"selectors": ("layer", "selector", "token_budget", "forced_first", "mass_kept", "block_recall",
                            "group_output_error", "sink_mass_dense", "sink_mass_sparse")},
    "heads": {"selectors": ("layer", "selector", "window", "mass_kept", "oracle_mass", "output_error",
                            "sink_mass_dense", "sink_mass_sparse"), "heads": None},
    "fit": {"evaluations": ("layer", "step", "is_kept", "kl", "block_recall", "mass_kept", "oracle_mass"),
            "layers": ("layer", "window", "best_step", "first_forced_mass", "random_recall", "window_mass",
                       "mean_key_mass"),
            "weak_indexers": None},
    **dict.fromkeys(("loss", "wide", "advised"), dict.fromkeys(("configs", "by_position", "differences", "first_block",
                                                                "evaluated"))),
    "asked": None, "solved": None, "retrieval": None,
    "advice": {"advice": None, "layers": ("layer", "is_sparse", "stays_dense", "mass_kept"), "measured": None,
               "windowed": None},
    "reuse": {"patterns": ("pattern_role", "pattern", "computing", "computing_layers", "mass_kept", "mass_lost",
                           "most_lost", "share_of_own"), "measured": None},
    "precision": {"index": ("precision", "format", "scale", "bits_per_value", "precision_recall", "mass_share",
                            "worst_layer"),
                  "cache": ("precision", "format", "scale", "bits_per_value", "dense_error", "sparse_error"),
                  "cache_layers": ("precision", "layer", "sparse_error"), "measured": None},
    "cache": {"caches": ("cache_role", "selector", "blocks", "share_of_context", "hit_rate", "hit_rate_belady",
                         "misses_per_token", "bytes_per_token"), "measured": None},
}


def piece_of(name: str) -> str:
    """`keeps` of keeps-64."""
    return name.split("-")[0]


def slim(content: dict, name: str) -> dict:
    """What a record keeps of a summary.json, which is a smaller report of the same form. Estimates of `keeps`, of which
    there are most, are without their intervals."""
    wanted = COLUMNS[piece_of(name)] or dict.fromkeys(content["tables"])
    alone = piece_of(name) == "keeps"
    tables, columns = {}, {}
    for table, of in content["tables"].items():
        if table not in wanted:
            continue
        kept = [one for one in of["columns"] if wanted[table] is None or one in wanted[table]]
        columns |= {one: _plain(content["columns"][one]) if alone else content["columns"][one] for one in kept}
        keys = [one + end for one in kept for end in (ENDS[:1] if alone else ENDS)]
        tables[table] = {**of, "key": [one for one in of["key"] if one in kept], "columns": kept,
                         "rows": [{key: _rounded(row[key]) for key in keys if key in row} for row in of["rows"]]}
    return {**content, "columns": columns, "tables": tables}


def _plain(column: dict) -> dict:
    return column | {"type": "real"} if column["type"] == "estimate" else column


def _rounded(value):
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def path_of(folder: Path, model: str, context: int) -> Path:
    return folder / model / f"{context}.json.xz"


def _turned(content: dict, turn) -> dict:
    return {**content, "tables": {name: {**of, "rows": turn(of["rows"])} for name, of in content["tables"].items()}}


def _columns(rows: list[dict]) -> dict[str, list]:
    return {key: [row[key] for row in rows] for key in rows[0]} if rows else {}


def _rows(columns: dict[str, list]) -> list[dict]:
    return [dict(zip(columns, values)) for values in zip(*columns.values())]


def _archive(path: Path) -> dict[str, dict]:
    return json.loads(lzma.decompress(path.read_bytes())) if path.exists() else {}


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """No other process or thread adds a record meanwhile."""
    folder.mkdir(parents=True, exist_ok=True)
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def write(path: Path, kind: str, piece: str, content: dict) -> None:
    """Adds a record to an archive, or puts it in the place of what it has."""
    with _alone(path.parent):
        own = dict(sorted({**_archive(path), f"{kind}-{piece}": _turned(content, _columns)}.items()))
        part = path.with_name(path.name + ".partial")
        part.write_bytes(lzma.compress(json.dumps(own, separators=(",", ":")).encode(), preset=9 | lzma.PRESET_EXTREME))
        part.replace(path)


def read(path: Path) -> dict[tuple[str, str], Report]:
    """The records of an archive by kind and piece; of one that is not there, none."""
    return {tuple(name.split("-", 1)): Report(path, _turned(content, _rows)) for name, content in _archive(path).items()}
