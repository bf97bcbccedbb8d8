# SPDX-License-Identifier: MIT
"""The rows that the old summary.json of msa-compare had (tests/answers_oracle.py)."""

from answers_oracle_analyze import Any

SIZES = ("block_size", "top_k", "forced_first", "forced_local", "rows_counted", "dead_groups", "tokens_allowed")
PLAIN = ("family", "kind", "blocks_kept", "tokens_read", "index_flops", "index_bytes", "attention_flops",
         "attention_bytes")
KEPT = ("oracle_mass", "score_recall", "block_recall", "sink_mass_dense", "sink_mass_sparse")
TIES = ("tied", "tied_by_rounding", "all_tied")
EXPLAINED = [
    ("selectors.is_over_budget", "was a star on the page"),
    ("selectors.beside_the_best", "was on the page alone"),
    ("windows.*", "was on the page alone"),
    *((f"layers.{name}", "was on the page alone")
      for name in ("window", "captured_tokens", "queries", "largest_budget", "rows_counted")),
]
DATASETS = ()
FILES = ()


def rows(old, shape):
    found = {}

    def add(table, key, **columns):
        for name, value in columns.items():
            found[table, key, name] = shape(value)

    ties = {(row["layer"], row["selector"], row["setting"]): row for row in old["ties"]}
    for row in old["rows"]:
        key = (row["layer"], row["selector"], row["setting"])
        add("selectors", key, token_budget=row["budget"], matched_budget=row["matched_budget"] or None,
            best_selector=row["behind"]["selector"] or None, **{name: row[name] for name in (*SIZES, *PLAIN)})
        for name in ("mass_kept", "group_output_error"):
            of = row["intervals"][name]
            found["selectors", key, name] = (row[name], of["low"], of["high"])
        found["selectors", key, "behind"] = tuple(row["behind"][end] for end in ("value", "low", "high"))
        for name in KEPT:
            found["selectors", key, name] = (row[name], Any(), Any())
        for name in TIES:
            found["selectors", key, name] = (ties[key][name] if key in ties else None, Any(), Any())
    for of in old["checks"]:
        blocks = next(row["intervals"]["mass_kept"] for row in old["rows"] if row["layer"] == of["layer"])
        add("layers", (of["layer"],), rows_checked=of["rows"], blocks_of_queries=blocks["blocks"],
            sequences=blocks["sequences"], **{name: of[name] for name in (
                "rows_with_all_blocks", "rows_undefined", "largest_difference_from_dense", "largest_mass_bound")})
    for of in old["layer_overlap"]:
        selector, _, setting = of["config"].partition("@")
        for a, layer in enumerate(of["layers"]):
            assert of["overlap"][a][a] == 1
            for b, other in enumerate(of["layers"]):
                assert of["overlap"][a][b] == of["overlap"][b][a]
                if layer < other:
                    add("layer_overlaps", (selector, setting, layer, other), layer_overlap=of["overlap"][a][b])
    for row in old["dropped_sinks"]:
        add("dropped_sinks", (row["layer"], row["selector"], row.get("setting")),
            **{name: row[name] for name in ("sink_mass_dense", "sink_mass_sparse", "sink_from_layer", "remedy")})
    return found
