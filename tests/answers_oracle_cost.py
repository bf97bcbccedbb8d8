# SPDX-License-Identifier: MIT
"""The rows that the three old JSON trees of msa-cost had (tests/answers_oracle.py)."""

NEW = [
    ("layer.kernels_intensity", "flops over bytes, was not there"),
    ("layer.paper_intensity", "likewise"),
    ("layer.speedup", "was there of the fastest alone; the contexts have it"),
    ("stages.stage_intensity", "was on the page alone"),
    ("selections.tile_queries", "the last of unions"),
    ("selections.tile_union_blocks", "likewise"),
    ("prefill_over_gpus.slowest_rank_seconds", "was on the page alone"),
    ("prefill_over_gpus.share_of_ideal", "was on the page alone"),
]
LINKS = [(f"chip.{name}", "was recorded over GPUs alone") for name in ("link_*", "network_*", "chips_of_host")]
EXPLAINED = []
DATASETS = ()
FILES = ()
LINK = ("bytes_per_second", "seconds")
OF_MODEL = ("query_heads", "kv_heads", "head_dim", "index_dim", "block_size", "top_k", "tile_queries")
OF_ARM = ("queries", "group_size", "block_size", "top_k", "used_slots", "used_blocks", "mean_queries_per_block",
          "most_queries_per_block", "work_items", "pass_fill", "union_share", "useful_flops", "gathered_q_bytes",
          "break_even_union_blocks")


def rows(old, shape):
    found = {}

    def add(table, key, **columns):
        for name, value in columns.items():
            found[table, key, name] = shape(value)

    over_gpus = old["format"] == "msa-cost-gpus"
    EXPLAINED[:] = NEW + ([("model.*", "only its name was recorded")] if over_gpus else LINKS)
    chip = old["hardware"]
    add("chip", (), chip=chip["name"], ceilings=chip["ceilings"], memory_bytes_per_second=chip["bytes_per_second"],
        chip_cache_bytes=chip["cache_bytes"], chip_cache_bytes_per_second=chip["cache_bytes_per_second"])
    for element, rate in chip["flops_per_second"].items():
        add("peaks", (element,), flops_per_second=rate)
    if over_gpus:
        gpus(old, add)
    elif old["format"] == "msa-cost":
        sizes(old, add)
    else:
        selected(old, add)
    return found


def gpus(old, add):
    for name in ("link", "network"):
        add("chip", (), **{f"{name}_{of}": (old[name] or {}).get(of) for of in LINK})
    add("chip", (), chips_of_host=old["chips_of_host"])
    named = {"one_seconds": "one_gpu_seconds", "seconds": "divided_seconds", "speedup": "divided_speedup"}
    for row in old["rows"]:
        key = row["tokens"], row["gpus"]
        for phase in ("prefill", "decode"):
            add(f"{phase}_over_gpus", key,
                **{named.get(name, name): value for name, value in row[phase].items() if name != "ranks"})
        for rank, of in enumerate(row["prefill"]["ranks"]):
            add("ranks", (*key, rank), **of)


def sizes(old, add):
    add("model", (), model=old["model"], layers_of_model=old["layers"], windowed_layers=old["windowed_layers"],
        window=old["window"], assumed=" ".join(old["assumed"]), **{name: old["sizes"][name] for name in OF_MODEL})
    for context in old["contexts"]:
        tokens, paper = context["tokens"], context["paper"]
        windowed = context.get("windowed_layer", {})
        add("contexts", (tokens,), tile_union_blocks=context["union_blocks"], paper_flop_ratio=paper["flop_ratio"],
            paper_q_outer_intensity=paper["q_outer_intensity"], paper_kv_outer_intensity=paper["kv_outer_intensity"],
            paper_slot_buffer_bytes=paper["slot_buffer_bytes"])
        for support, flops in paper["index_training_flops"].items():
            add("index_training", (tokens, support), scores_flops=flops["scores"], loss_flops=flops["loss"],
                gradients_flops=flops["gradients"], training_flops=flops["total"])
        for phase in ("prefill", "decode"):
            add("contexts", (tokens,), **{
                f"{phase}_speedup": context[f"{phase}_speedup"],
                f"paper_{phase}_speedup": paper[f"{phase}_speedup"],
                f"windowed_{phase}_seconds": windowed.get(f"{phase}_seconds")})
            pipelines = {}
            for accounting, of in (("kernels", context), ("paper", paper)):
                for pipeline in of[phase]:
                    pipelines.setdefault(pipeline["pipeline"], {})[accounting] = pipeline
            for name, by in pipelines.items():
                for accounting in ("kernels", "paper"):
                    add("layer", (phase, tokens, name), **{
                        f"{accounting}_{what}": by.get(accounting, {}).get(what)
                        for what in ("flops", "bytes", "seconds")})
                for accounting, pipeline in by.items():
                    for stage in pipeline["stages"]:
                        add("stages", (phase, tokens, accounting, name, stage["stage"]), limit=stage["bound"],
                            **{f"stage_{what}": stage[what] for what in ("flops", "bytes", "cache_bytes", "seconds")},
                            **{what: stage[what] for what in ("flops_formula", "bytes_formula")})


def selected(old, add):
    for arm in old["rows"]:
        key = arm["layer"], arm["selector"]
        assert arm["partial_out_bytes"] == arm["gathered_q_bytes"]  # as its definition says
        add("selections", key, selected_pairs=arm["pairs"], paper_chunks=arm["paper"]["chunks"],
            paper_mma_fill=arm["paper"]["mma_fill"], **{name: arm[name] for name in OF_ARM})
        for union in arm["unions"]:
            add("unions", (*key, union["tile_queries"]), union_blocks=union["union_blocks"],
                union_reads=union["reads"], union_misses=union["cache_misses"])
        for accounting, orders in (("kernels", arm["orders"]), ("paper", arm["paper"]["orders"])):
            for order in orders:
                add("orders", (*key, accounting, order["order"]), executed_flops=order["executed_flops"],
                    memory_bytes=order["memory_bytes"], read_bytes=order["cache_bytes"],
                    order_seconds=order["seconds"],
                    is_fastest=accounting == "kernels" and order["order"] == arm["fastest"])
