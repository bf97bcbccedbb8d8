# SPDX-License-Identifier: MIT
"""The rows that the old summary.json of msa-cache had (tests/answers_oracle.py)."""

EXPLAINED = [
    ("layers.median_distance", "was on the page alone, as a column of layers; Python computed it from reuses"),
    ("layers.cold_share", "likewise, cold over uses"),
    ("layers.layer_*", "were on the page alone"),
]
DATASETS = ()
FILES = ("rows.csv",)  # tables/caches.csv
POINT = ("share_of_context", "cache_bytes", "hit_rate", "hit_rate_lfu", "hit_rate_belady", "misses_per_token",
         "bytes_per_token", "link_seconds_per_token", "late_misses_per_token", "in_vain_per_token")
GUESSED = {"hits": "hits", "share": "hit_share", "left": "left_without_cache",
           "left_of_smallest": "left_with_smallest_cache"}


def rows(old, shape):
    found = {}

    def add(table, key, **columns):
        for name, value in columns.items():
            found[table, key, name] = shape(value)

    for of in old["selectors"]:
        name, recommended = of["selector"], of["recommended"]
        add("selectors", (name,), blocks_lru=recommended and recommended["blocks"],
            layers_measured=of["layers"],
            **{key: of[key] for key in ("blocks_lfu", "blocks_belady", "layers_guessed", "written_bytes_per_token")})
        caches = [("recommended", recommended)] if recommended else []
        caches += [("tried", point) for point in of["points"]] + [("whole", of["whole_context"])]
        for role, point in caches:
            add("caches", (role, name, point["blocks"]), **{key: point[key] for key in POINT})
    for of in old["layers"]:
        key = of["layer"], of["selector"]
        before = of["previous_layer"] or {}
        add("layers", key, previous_layer=before.get("layer"),
            **{name: of[name] for name in ("steps", "groups", "block_bytes", "smallest_cache", "uses", "written",
                                           "cold", "previous_layer_note")},
            **{f"previous_step_{name}": of["previous_step"][was] for name, was in GUESSED.items()},
            **{f"previous_layer_{name}": before.get(was) for name, was in GUESSED.items()})
        for distance, count in enumerate(of["reuses"]):
            add("reuses", (*key, distance), reuses=count)
    add("measured", (), queries=old["steps"], most_bytes_per_token=old["link"]["bytes_per_token"],
        **{name: old[name] for name in ("block_size", "context_blocks", "sequences")})
    return found
