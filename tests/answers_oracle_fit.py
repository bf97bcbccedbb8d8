# SPDX-License-Identifier: MIT
"""The rows that the old summary.json of msa-fit-indexer had (tests/answers_oracle.py); its rows.csv had 9 digits
and is tables/evaluations.csv and tables/layers.csv."""

import csv

EXPLAINED = [
    ("gains.measure_name", "the heading of the measure"),
    ("gains.is_distinguishable", "was a mark on the page"),
    ("gains.at_start", "the kept value less the gain, but for rounding; was on the page alone"),
    ("layers.window", "was there where any layer has one; no run has"),
    ("evaluations.is_kept", "was best_step of rows.csv; summary.json had the kept ones alone"),
]
DATASETS = ()
FILES = ("rows.csv",)
MEASURES = ("kl", "kl_selected", "block_recall", "score_recall", "mass_kept", "oracle_mass", "output_error",
            "entropy_index", "entropy_teacher")
OF_LAYER = ("best_step", "split", "warmup_steps", "train_queries", "held_out_queries", "dead_heads", "index_flops",
            "index_bytes", "first_forced_mass", "random_recall", "window_mass", "mean_key_mass")


def rounded(texts):
    """Of all evaluations."""
    lines = list(csv.DictReader(texts["rows.csv"].splitlines()))
    return {("evaluations", (int(line["layer"]), int(line["steps"])), name): line[name]
            for line in lines for name in MEASURES}


def rows(old, shape):
    found = {}

    def add(table, key, **columns):
        for name, value in columns.items():
            found[table, key, name] = shape(value)

    for row in old["rows"]:
        layer = row["layer"]
        add("layers", (layer,), last_step=row["steps"], held_out_counted=row["rows_counted"],
            **{name: row[name] for name in OF_LAYER})
        for name in MEASURES:
            ends = row["intervals"].get(name, {})
            value = {"value": row[name], "low": ends.get("low"), "high": ends.get("high")}
            add("evaluations", (layer, row["best_step"]), **{name: value})
            if ends:
                add("gains", (layer, name), at_kept=value, gain=row["gain"].get(name),
                    blocks_of_queries=ends["blocks"], sequences=ends["sequences"])
    for of in old["weak_indexers"]:
        add("weak_indexers", (of["layer"], of["selector"], of["finding"]),
            **{name: of.get(name) for name in ("block_recall", "random_recall", "mass_kept", "rival")},
            rival_mass_kept=of.get("rival_mass_kept"))
    return found
