# SPDX-License-Identifier: MIT
"""The rows that the old summary.json of msa-precision had (tests/answers_oracle.py)."""

NEW = "of the list of accumulators, was not in the old tree"
EXPLAINED = [
    *[(f"{part}{of}.{name}", NEW) for part in ("index", "projections") for of in ("", "_layers")
      for name in ("score_recall", "oracle_mass", "sink_mass_dense", "sink_mass_sparse")],
    *[(f"cache{of}.{name}", NEW) for of in ("", "_layers")
      for name in ("block_recall", "score_recall", "oracle_mass", "sink_mass_dense")],
]
LAST_BITS = True
DATASETS = ()
FILES = ()
PARTS = ("index", "projections", "cache")


def rows(old, shape):
    found = {}

    def add(table, key, **columns):
        for name, value in columns.items():
            found[table, key, name] = shape(value)

    for part in PARTS:
        of = old[part]
        for place, row in enumerate(of["rows"] if of else ()):
            flags = {"is_recommended": place == of["recommended"], "is_nearest": place == of["nearest"]}
            none = {} if part != "cache" or "sparse_error" in of["measures"] else {"sparse_error": None}
            add(part, (row["name"],), **flags, **none,
                **{name: value for name, value in row.items() if name not in ("name", "layers")})
            assert [layer["layer"] for layer in row["layers"]] == of["layers"]
            for layer in row["layers"]:
                add(f"{part}_layers", (row["name"], layer["layer"]), **none,
                    **{name: value for name, value in layer.items() if name != "layer"})
    add("measured", (), **{name: old[name] for name in ("queries", "blocks_of_queries", "sequences")})
    for row in old["dropped_sinks"]:
        add("dropped_sinks", (row["layer"], row["selector"], row.get("setting")),
            **{name: row[name] for name in ("sink_mass_dense", "sink_mass_sparse", "sink_from_layer", "remedy")})
    return found
