# SPDX-License-Identifier: MIT
"""The rows that the old summary.json of msa-analyze had (tests/answers_oracle.py)."""


class Any:
    """What an interval was not written for."""

    def __eq__(self, other):
        return True


RECALLS = ("block_recall", "score_recall", "mass_kept", "oracle_mass")
OTHERS = ("output_error", "sink_mass_dense", "sink_mass_sparse", "entropy_dense", "entropy_sparse")
COUNTS = ("rows_counted", "rows_trivial", "dead_heads")
EXPLAINED = [("weak_indexers.*", "not in the old tree")]
DATASETS = ()
FILES = ()


def rows(old, shape):
    found = {}

    def add(table, key, **columns):
        for name, value in columns.items():
            found[table, key, name] = shape(value)

    ties = {(row["layer"], row["selector"]): row for row in old.get("ties", [])}
    for row in old["rows"]:
        key = (row["layer"], row["selector"])
        intervals = row["intervals"]
        for name in RECALLS:
            found["selectors", key, name] = (row[name], intervals[name]["low"], intervals[name]["high"])
        for name in OTHERS:
            found["selectors", key, name] = (row[name], Any(), Any())
        for name in ("tied", "tied_by_rounding", "all_tied"):
            found["selectors", key, name] = (ties[key][name], Any(), Any())
        add("selectors", key, window=row.get("window"), **{name: row[name] for name in COUNTS},
            blocks_of_queries=intervals["mass_kept"]["blocks"], sequences=intervals["mass_kept"]["sequences"])
    for row in old["dropped_sinks"]:
        add("dropped_sinks", (row["layer"], row["selector"], row.get("setting")),
            **{name: row[name] for name in ("sink_mass_dense", "sink_mass_sparse", "sink_from_layer", "remedy")})
    return found
