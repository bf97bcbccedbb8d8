# SPDX-License-Identifier: MIT
"""Records of the study: the summary.json of a program (msa-report 1) with the columns that the page reads, compressed."""

from __future__ import annotations

import json
import lzma
from pathlib import Path

from msalab.results import ENDS, Report

FOLDER = Path(__file__).parent / "records"
DIGITS = 5  # of a number; intervals are wider
# Of each piece the tables and columns that are kept; a table that a program leaves out is left out.
COLUMNS = {
    "keeps": {"selectors": ("layer", "selector", "setting", "token_budget", "block_size", "forced_first", "mass_kept",
                            "block_recall", "group_output_error", "sink_mass_dense", "sink_mass_sparse",
                            "rows_counted")},
    "heads": {"selectors": ("layer", "selector", "window", "mass_kept", "oracle_mass", "output_error",
                            "sink_mass_dense", "sink_mass_sparse"), "heads": None},
    "fit": {"evaluations": ("layer", "step", "is_kept", "kl", "block_recall", "mass_kept", "oracle_mass"),
            "layers": ("layer", "window", "best_step", "first_forced_mass", "random_recall", "window_mass",
                       "mean_key_mass"),
            "weak_indexers": None},
    **dict.fromkeys(("loss", "wide", "advised"), dict.fromkeys(("configs", "by_position", "differences", "first_block",
                                                                "evaluated"))),
    "asked": None, "retrieval": None,
    "advice": {"advice": None, "layers": ("layer", "is_sparse", "stays_dense", "mass_kept"), "measured": None,
               "windowed": None},
}


def piece_of(name: str) -> str:
    """`keeps` of keeps-64."""
    return name.split("-")[0]


def slim(content: dict, name: str) -> dict:
    """What a record keeps of a summary.json, which is a smaller report of the same form."""
    wanted = COLUMNS[piece_of(name)] or dict.fromkeys(content["tables"])
    tables, columns = {}, {}
    for table, of in content["tables"].items():
        if table not in wanted:
            continue
        kept = [one for one in of["columns"] if wanted[table] is None or one in wanted[table]]
        columns |= {one: content["columns"][one] for one in kept}
        keys = [one + end for one in kept for end in ENDS]
        tables[table] = {**of, "key": [one for one in of["key"] if one in kept], "columns": kept,
                         "rows": [{key: _rounded(row[key]) for key in keys if key in row} for row in of["rows"]]}
    return {**content, "columns": columns, "tables": tables}


def _rounded(value):
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def path_of(folder: Path, model: str, context: int, kind: str, piece: str) -> Path:
    return folder / model / f"{context}-{kind}-{piece}.json.xz"


def write(path: Path, content: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".partial")
    part.write_bytes(lzma.compress(json.dumps(content, separators=(",", ":")).encode(), preset=9))
    part.replace(path)


def read(path: Path) -> Report:
    return Report(path, json.loads(lzma.decompress(path.read_bytes())))
