# SPDX-License-Identifier: MIT
"""The rows that the old summary.json of msa-advise had (tests/answers_oracle.py)."""

SETTING = ("selector", "block_size", "top_k", "forced_first", "forced_local")
OTHER_QUERIES = "the queries are those of the other programs, no longer tiles of neighbours"
EXPLAINED = [
    *[(f"{table}.{name}*", OTHER_QUERIES) for table in ("settings", "layers")
      for name in ("mass_kept", "group_output_error", "queries", "blocks_of_queries", "sequences", "is_sparse",
                   "stays_dense", "sink_mass")],
    ("advice.*", OTHER_QUERIES + ": what is singled out may be another setting"),
    ("own_settings.*", OTHER_QUERIES),
    ("layers.*_of_layer", "of the setting singled out"),
    ("layers.share_of_dense_layer", "likewise"),
    ("layers.loop_order", "likewise"),
    ("dropped_sinks.*", "likewise"),
]
DATASETS = ("/sums*", "/query_blocks*", "/queries*", "/checks*", "/layers/*@queries", "/layers/*@tiles")
FILES = ()


def costs(of):
    return {name: of["cost"][name] for name in ("seconds", "flops", "bytes", "share_of_dense", "loop_order")}


def rows(old, shape):
    found = {}

    def add(table, key, **columns):
        for name, value in columns.items():
            found[table, key, name] = shape(value)

    for of in old["settings"]:
        add("settings", tuple(of[name] for name in SETTING), **costs(of), budget=of["tokens"], is_bound=of["is_bound"])
    for row in old.get("windowed", []):
        add("windowed", (row["layer"],), **{name: value for name, value in row.items() if name != "layer"})
    for layer in old["layers"]:
        add("layers", (layer["layer"],),
            **{f"dense_{name}_of_layer": value for name, value in layer["dense_cost"].items()})
    add("measured", (), layers=" ".join(str(layer["layer"]) for layer in old["layers"]),
        is_extrapolated=old["is_extrapolated"], **{f"dense_{name}": value for name, value in old["dense"].items()})
    return found
