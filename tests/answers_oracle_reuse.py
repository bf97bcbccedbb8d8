# SPDX-License-Identifier: MIT
"""The rows that the old summary.json of msa-reuse had (tests/answers_oracle.py)."""

MEASURES = ("mass_kept", "mass_lost", "block_recall", "own_recall", "output_error")
EXPLAINED = [
    ("distances.own_mass_lost", "always 0: own ids against own ids"),
    ("distances.own_own_recall", "always 1"),
    *[(f"{table}.{name}", "of the list of accumulators, was not in the old tree")
      for table in ("pairs", "distances", "patterns")
      for name in ("score_recall", "oracle_mass", "sink_mass_dense", "sink_mass_sparse")],
]
LAST_BITS = True
DATASETS = ()
FILES = ()


def spaced(numbers):
    return " ".join(map(str, numbers))


def rows(old, shape):
    found = {}

    def add(table, key, **columns):
        for name, value in columns.items():
            found[table, key, name] = shape(value)

    for pair in old["pairs"]:
        add("pairs", (pair["source"], pair["target"]), distance=pair["distance"],
            **{name: pair[name] for name in MEASURES})
    for at in old["distances"]:
        add("distances", (at["distance"],), pairs=at["pairs"], **{name: at[name] for name in MEASURES},
            **{f"own_{name}": at["own"][name] for name in MEASURES})
    patterns = [("own", old["own"]), *(("asked", of) for of in old["patterns"]),
                *(("best", of) for of in old["front"])]
    patterns += [("target_each", {**old["each"], "name": "target in every layer"})] if old["each"] else []
    patterns += [("target_mean", {**old["mean"], "name": "target in the mean"})] if old["mean"] else []
    for role, of in patterns:
        costs = {name: of["cost"][name] for name in ("seconds", "flops", "bytes", "share_of_own", "share_of_dense")}
        for before, cost in (("selection", of["selection_cost"]), ("saved", of["saved"])):
            costs |= {f"{before}_{name}": cost[name] for name in ("seconds", "flops", "bytes")}
        add("patterns", (role, of["name"]), computing=len(of["computing_layers"]),
            computing_layers=spaced(of["computing_layers"]), sources=spaced(of["sources"]),
            **{name: of[name] for name in (*MEASURES, "most_lost", "each_reaches", "mean_reaches")}, **costs)
    references = old["references"]
    add("measured", (), layers=spaced(old["layers"]),
        **{name: old[name] for name in ("missing_layers", "queries", "blocks_of_queries", "sequences",
                                        "is_bound", "is_extrapolated")},
        **{name: references[name] for name in ("random_mass_kept", "random_output_error", "oracle_mass")},
        **{f"dense_{name}": value for name, value in old["dense"].items()})
    for row in old["dropped_sinks"]:
        add("dropped_sinks", (row["layer"], row["selector"], row.get("setting")),
            **{name: row[name] for name in ("sink_mass_dense", "sink_mass_sparse", "sink_from_layer", "remedy")})
    return found
