# SPDX-License-Identifier: MIT
"""Small files of msa-cost, msa-compare and the benchmark, with round numbers."""

from __future__ import annotations

import json
from pathlib import Path

from make_report import estimate, report

CHIP = {"chip": (0, [{"chip": "chip", "ceilings": "peak", "memory_bytes_per_second": 1e13,
                      "chip_cache_bytes": 1e6, "chip_cache_bytes_per_second": None}]),
        "peaks": (1, [{"element": "bf16", "flops_per_second": 1e15}])}
TOKENS = (32768, 131072)
PHASES = ("prefill", "decode")


# Bytes by stage at 32K.
PAPER = {"q_outer": {"index scores": 5e9, "select blocks": 1e9, "sparse attention": 1.4e11},
         "kv_outer": {"index scores": 5e9, "select blocks": 1e9, "reverse index": 1e9, "sparse attention": 1.9e10,
                      "combine": 1e10}}


def pipeline(name: str, *stages: tuple[str, float, float]) -> dict:
    """Stages of (name, FLOPs, bytes) on CHIP."""
    made = [{"stage": stage, "stage_flops": flops, "stage_bytes": moved,
             "stage_seconds": max(flops / 1e15, moved / 1e13)} for stage, flops, moved in stages]
    return {"pipeline": name, "seconds": sum(stage["stage_seconds"] for stage in made),
            "stages": made}


def pipelines(tokens: int) -> dict[str, list[dict]]:
    scale = tokens / 32768
    select, schedule = ("index select", 1e13, 1e9), ("schedule", 0, 1e8)
    one_by_one = ("sparse attention", 1.6e13, 1e12)
    return {"prefill": [
                pipeline("dense", ("dense attention", 1e15 * scale, 1e9)),
                pipeline("q_outer", select, one_by_one),
                pipeline("union", select, schedule, ("tile by tile", 3.2e13, 1e11)),
                pipeline("kv_outer", select, schedule, ("block by block", 1.6e13, 0.999e11),
                         ("combine", 0, 1e11)),
                pipeline("automatic", select, schedule, ("tile by tile", 3e13, 1e11))],
            "decode": [pipeline("dense", ("dense attention", 1e9, 1e9)),
                       *(pipeline(order, ("index select", 1e8, 1e8),
                                  ("sparse attention", 1e8, 1e8))
                         for order in ("q_outer", "union", "kv_outer", "automatic"))]}


def cost(union_blocks: float | None = 20) -> dict:
    """`union_blocks`: as given; None: blocks chosen by chance."""
    contexts = [{"tokens": tokens, "prefill_speedup": 2 * tokens / 32768, "decode_speedup": 5.0,
                 "paper_flop_ratio": 6.4 * tokens / 32768, "paper_q_outer_intensity": 15.9,
                 "paper_kv_outer_intensity": 83.4} for tokens in TOKENS]
    layer = [{"phase": phase, "tokens": tokens, "pipeline": of["pipeline"],
              "kernels_seconds": of["seconds"]}
             for phase in PHASES for tokens in TOKENS for of in pipelines(tokens)[phase]]
    stages = [{"phase": phase, "tokens": tokens, "accounting": "kernels",
               "pipeline": of["pipeline"], **stage}
              for tokens in TOKENS for phase in PHASES for of in pipelines(tokens)[phase]
              for stage in of["stages"]]
    stages += [{"phase": "prefill", "tokens": tokens, "accounting": "paper", "pipeline": order, "stage": stage,
                "stage_flops": 1e13, "stage_bytes": moved * tokens / 32768, "stage_seconds": 1.0}
               for tokens in TOKENS for order, of in PAPER.items() for stage, moved in of.items()]
    return report("msa-cost", {"layer": (3, layer), "contexts": (1, contexts), "stages": (5, stages),
                               "model": (0, [{"model": "toy"}]), **CHIP},
                  {"element": "bf16", "union_blocks": union_blocks})


def orders(layer: int = 3) -> dict:
    selections = {"random": 3, "oracle": 1}
    return report("msa-cost", {
        "selections": (2, [{"layer": layer, "selector": selector, "useful_flops": 1e9}
                           for selector in selections]),
        "unions": (3, [{"layer": layer, "selector": selector, "neighbours": queries,
                        "union_blocks": 4.0 * (spread if queries > 1 else 1)}
                       for selector, spread in selections.items() for queries in (1, 8)]),
        "orders": (4, [{"layer": layer, "selector": selector, "accounting": "kernels",
                        "order": order, "executed_flops": 2e9, "memory_bytes": 1e6,
                        "read_bytes": 2e6, "order_seconds": seconds * spread}
                       for selector, spread in selections.items()
                       for order, seconds in zip(("q_outer", "union", "kv_outer", "automatic"),
                                                 (3e-6, 1e-6, 2e-6, 1e-6))]), **CHIP},
                  {"element": "bf16"})


def measurement(kind: str, stage: str, tokens: int, seconds: float, **more) -> dict:
    """`seconds` None: skipped."""
    return {"case": f"{kind} {tokens}", "case_kind": kind, "case_queries": 1 if kind == "decode" else tokens,
            "case_keys": tokens, "case_sequences": 1, "stage": stage, "selection": more.get("selection"),
            "order": more.get("order"), "index_form": more.get("index_form"),
            "answered_by": more.get("answered_by", ""), "median_us": None if seconds is None else seconds * 1e6,
            "skipped": "no room" if seconds is None else None}


def record(measured: list[dict], device: str = "chip", started: str = "", baselines=()) -> dict:
    """A record of msa-bench. `baselines`: (library, tokens, seconds) of squares."""
    of_case = ("case_kind", "case_queries", "case_keys", "case_sequences")
    cases = {m["case"]: {"case": m["case"], **{key: m[key] for key in of_case}} for m in measured}
    tables = {"benchmark": (0, [{"device": device, "started": started}]), "cases": (1, list(cases.values())),
              "measurements": (5, [{key: value for key, value in m.items() if key not in of_case}
                                   for m in measured])}
    if baselines:
        tables["baselines"] = (1, [{"baseline": f"{by} {tokens}", "library": by, "skipped": None,
                                    "median_us": 1e6 * seconds,
                                    **{key: measurement("square", "", tokens, 0)[key] for key in of_case}}
                                   for by, tokens, seconds in baselines])
    made = report("msa-bench", tables)
    for key in made["columns"].keys() & {"selection", "order", "index_form", "skipped"}:  # without any value in some
        made["columns"][key]["type"] = "text"
    return made


def bench() -> dict:
    """Dense takes twice its roofline, kv_outer three times, a layer a fifth of dense; fp8 and other
    shapes do not count."""
    measured = [measurement("chunk", "dense_attention", 32768, 1.0),
                measurement("square", "layer", 32768, 1e-3, selection="random")]
    for tokens in TOKENS:
        prefill = pipelines(tokens)["prefill"]
        dense, kv_outer = 2 * prefill[0]["seconds"], 3 * prefill[3]["seconds"]
        for stage, seconds, more in (
                ("dense_attention", dense, {}),
                ("index_select", kv_outer / 4, {"selection": "structured"}),
                ("index_select", 9.0, {"selection": "structured", "index_form": "e4m3"}),
                ("sparse_attention", 3 * kv_outer / 4,
                 {"selection": "structured", "order": "kv_outer"}),
                ("sparse_attention", 9.0, {"selection": "random", "order": "kv_outer"}),
                ("layer", dense / 5, {"selection": "structured"})):
            measured.append(measurement("square", stage, tokens, seconds, **more))
    return record([*measured, measurement("square", "layer", 1, None)])


def comparison(layer: int = 3, over: str = "") -> dict:
    """`over`: the selector that reads more than its budget."""
    rows = [{"layer": layer, "selector": selector, "setting": str(budget), "token_budget": budget,
             "tokens_allowed": budget,
             "tokens_read": budget * (4.0 if selector == over else 0.75),
             "mass_kept": estimate(mass + budget / 2000), "oracle_mass": 0.9, "group_output_error": 0.1,
             "index_flops": index, "index_bytes": index, "attention_flops": 100.0 * budget,
             "attention_bytes": 10.0 * budget, "rows_counted": 40}
            for selector, mass, index in (("random", 0.3, 0.0), ("oracle", 0.7, 9e4),
                                          ("quest", 0.6, 3e4))
            for budget in (128, 256)]
    for row in rows:
        row["mass_kept"]["high"] += 0.01
    rows[0]["mass_kept"] = {"value": None, "low": None, "high": None}  # no counted row
    return report("msa-compare", {"selectors": (3, rows)}, {"phase": "prefill"})


def advice(reached: bool = True, layer: int = 3, dense: str | None = None) -> dict:
    """Two selectors at two budgets, and the oracle as a bound. `dense`: the layers that stay so under the
    plan, the second one unless given."""
    settings = [{"selector": selector, "block_size": 32, "top_k": top_k, "forced_first": 0,
                 "forced_local": 1, "budget": 32 * top_k, "mass_kept": estimate(mass + top_k / 80),
                 "group_output_error": estimate(0.3 - top_k / 80), "seconds": seconds * top_k,
                 "share_of_dense": seconds * top_k}
                for selector, mass, seconds in (("mean-key", 0.6, 0.02), ("quest", 0.55, 0.03),
                                                ("oracle", 0.8, 0.1))
                for top_k in (4, 8)]
    chosen = settings[1] | {"share_of_dense": 0.58}
    of_layer = {name: value for name, value in chosen.items() if name not in ("seconds", "share_of_dense")}
    dense = str(layer + 1) if dense is None else dense
    return report("msa-advise", {
        "advice": (6, [{"setting_role": "recommended" if reached else "nearest"} | chosen | {"dense_layers": dense},
                       *({"setting_role": "front"} | of | {"dense_layers": ""} for of in settings[:2])]),
        "own_settings": (1, [{"layer": layer} | of_layer | {"seconds_of_layer": 0.1, "share_of_dense_layer": 0.2}]),
        "layers": (1, [{"layer": layer + n, "dense_seconds_of_layer": 0.5} for n in range(2)]),
        "settings": (5, [of | {"is_bound": of["selector"] == "oracle"} for of in settings]),
        "measured": (0, [{"is_extrapolated": True, "dense_seconds": 1.0}])},
        options={"phase": "prefill", "context": 131072, "hardware": "h100", "keep": 0.7, "error": None,
                 "budget": None}, reached=reached)


def cache(reached: bool = True, layer: int = 3, layers: int = 2, prefetch: str = "none",
          rates: dict | None = None) -> dict:
    """Selectors in caches of 4 to 16 blocks, with their hit rates; 6 are enough for quest, none for
    the oracle. The first layer has none before it, the next one has."""
    rates = rates or {"oracle": (0.7, 0.8, 0.9), "quest": (0.9, 0.96, 1.0)}

    def point(role, selector, blocks, hit_rate, tried=True):
        return {"cache_role": role, "selector": selector, "blocks": blocks,
                "share_of_context": blocks / 16, "cache_bytes": 4096.0 * blocks,
                "hit_rate": hit_rate, "hit_rate_lfu": hit_rate - 0.05 if tried else None,
                "hit_rate_belady": (hit_rate + 1) / 2 if tried else None,
                "misses_per_token": 8 * (1 - hit_rate), "bytes_per_token": 32768 * (1 - hit_rate),
                "link_seconds_per_token": (1 - hit_rate) * 1e-3,
                "late_misses_per_token": 6 * (1 - hit_rate), "in_vain_per_token": 1.5}

    def per_layer(number, selector, share):
        return {"layer": number, "selector": selector, "smallest_cache": 4, "steps": 64,
                "cold_share": 32 / 512, "median_distance": 1, "previous_step_share": share,
                "previous_layer_share": None if number == layer else share / 2}

    chosen = {"quest": point("recommended", "quest", 6, 0.94, False)} if reached else {}
    caches = [*(chosen[name] for name in rates if name in chosen),
              *(point("tried", name, blocks, rate) for name, of in rates.items()
                for blocks, rate in zip((4, 8, 16), of))]
    return report("msa-cache", {
        "selectors": (1, [{"selector": name, "blocks_lru": chosen[name]["blocks"] if name in chosen else None}
                          for name in rates]),
        "caches": (3, caches),
        "layers": (2, [per_layer(layer + more, name, {"oracle": 0.6}.get(name, 0.8))
                       for more in range(layers) for name in rates]),
        "measured": (0, [{"context_blocks": 16, "most_bytes_per_token": 2000.0}])},
        {"link": 2.0, "time_per_token": 1.0, "prefetch": prefetch},
        {"cold_share": "what cold_share means"}, reached)


def sharing(reached: bool = True) -> dict:
    """Three layers: the second may take the ids of the first, the third needs its own."""
    def estimates(lost):
        return {name: estimate(value) for name, value in (
            ("mass_kept", 0.9 - lost), ("mass_lost", lost), ("block_recall", 0.8 - lost),
            ("own_recall", 1 - lost), ("output_error", 0.1 + lost))}

    def pattern(role, name, layers, lost):
        share = (1 + len(layers)) / 4
        return {"pattern_role": role, "pattern": name, "computing": len(layers),
                "computing_layers": " ".join(map(str, layers)), **estimates(lost),
                "most_lost": 2.0 * lost, "seconds": share, "share_of_own": share,
                "saved_seconds": 1 - share, "saved_flops": 1e12 * (1 - share),
                "saved_bytes": 1e9 * (1 - share)}

    losses = {(0, 0): 0.0, (0, 1): 0.02, (1, 1): 0.0, (0, 2): 0.4, (1, 2): 0.3, (2, 2): 0.0}
    patterns = [pattern("own", "own ids", [0, 1, 2], 0.0), pattern("asked", "every 2", [0, 2], 0.01),
                pattern("best", "best of 1", [0], 0.14), pattern("best", "best of 2", [0, 2], 0.01),
                pattern("best", "best of 3", [0, 1, 2], 0.0)]
    if reached:
        patterns += [pattern("target_each", "target in every layer", [0, 2], 0.01),
                     pattern("target_mean", "target in the mean", [0, 2], 0.01)]
    return report("msa-reuse", {
        "distances": (1, [{"distance": distance, "pairs": 3 - distance, **estimates(lost)}
                          for distance, lost in enumerate((0.0, 0.16, 0.4))]),
        "patterns": (2, patterns),
        "pairs": (2, [{"source": source, "target": target, "distance": target - source,
                       **estimates(lost)} for (source, target), lost in losses.items()]),
        "measured": (0, [{"is_extrapolated": False, "random_mass_kept": 0.25}])},
        {"phase": "prefill", "context": 131072, "hardware": "h100", "selector": "index",
         "keep": None, "lose": 0.05, "error": None},
        {"mass_lost": "what mass_lost means"}, reached)


def precision(reached: bool = True, index: bool = True, projections: bool = False) -> dict:
    """Full precision, int8 and rotated int4; int8 is enough. Of projections, f32 and bf16, each
    with its product in f32, and bf16 with it rounded."""
    def rows(of, measures, losses):
        return [{"precision": name, "format": name.split(",")[0], **form, "asked": True,
                 "computed_in": "f32",
                 **{measure: estimate(value(loss), 0.001) for measure, value in measures.items()},
                 "worst_layer": loss, "reaches": reached and loss < 0.01,
                 "is_recommended": reached and place == 1, "is_nearest": place == 0}
                for place, ((name, form), loss) in enumerate(zip(of, losses))]

    stored = [(name, {"scale": scale, "rotated": "rotated" in name, "bits_per_token": 64 * bits,
                      "bits_per_value": bits})
              for name, scale, bits in (("f32", "none", 32.0), ("int8, scale per token", "token", 8.5),
                                        ("int4, scale per token, rotated", "token", 4.5))]
    projected = [(name, {"product": product, "bits_per_weight": bits}) for name, product, bits in (
        ("f32", "f32", 32.0), ("bf16", "f32", 16.0), ("bf16, rounded product", "bf16", 16.0))]
    kept = {name: lambda loss: 1 - loss for name in ("precision_recall", "block_recall", "mass_kept",
                                                     "mass_share")}
    of_ids = {**kept, "recall_share": lambda loss: 1 - 2 * loss, "output_error": lambda loss: loss}
    shares = {name: lambda loss: 1 - loss for name in ("mass_share", "recall_share")}
    of_cache = {"dense_error": lambda loss: loss, "mass_share": lambda loss: 1 - loss,
                "sparse_error": lambda loss: loss / 2}
    return report("msa-precision", {
        "index": (1, rows(stored, of_ids, (0, 0.002, 0.1)) if index else []),
        "projections": (1, rows(projected, shares, (0, 0.001, 0.02)) if projections else []),
        "cache": (1, rows(stored, of_cache, (0, 0.005, 0.2)))},
        {"keep": 0.99, "error": 0.01}, {"mass_share": "what mass_share means"}, reached)


def write_all(folder: Path) -> dict[str, str]:
    """One file of each kind; their paths by kind."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {}
    for kind, content in {"cost": cost(), "orders": orders(), "bench": bench(),
                          "compare": comparison(), "advise": advice(),
                          "cache": cache(), "reuse": sharing(),
                          "precision": precision()}.items():
        path = folder / f"{kind}.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        paths[kind] = str(path)
    return paths
