# SPDX-License-Identifier: MIT
"""What each number means. The definitions that a run recorded take precedence."""

from __future__ import annotations

from .results import Results

GLOSSARY = {
    "mass_kept": "Dense attention probability that falls on the selected blocks: the sum of P_b "
                 "over them. 1 loses nothing.",
    "oracle_mass": "Mass kept by the oracle: the most that k blocks can keep.",
    "block_recall": "Share of the oracle's blocks that the selector also chose: |I* ∩ I| / |I*|.",
    "score_recall": "Share of the oracle's mass on the blocks that both chose.",
    "output_error": "Relative error of the attention output, per head: "
                    "‖o_sparse − o_dense‖ / ‖o_dense‖. 0 loses nothing.",
    "sink_mass_dense": "Mean probability that dense attention puts on token 0.",
    "sink_mass_sparse": "Mean probability on token 0 when attention sees the selected blocks only.",
    "entropy_dense": "Entropy of dense attention in nats; e to this power is the number of keys "
                     "that attention is spread over.",
    "entropy_sparse": "Entropy in nats of attention over the selected blocks.",
    "rows_counted": "Queries in the averages.",
    "rows_trivial": "Queries that see at most k blocks, keep all of them, and are left out of the "
                    "averages.",
    "budget": "Tokens that a query may attend to.",
    "index_MFLOP": "Arithmetic that the selector needs per query to choose.",
    "attention_MFLOP": "Arithmetic of attention over the chosen tokens per query.",
    "index_kB": "Bytes that the selector reads per query to choose.",
    "attention_kB": "Bytes that attention over the chosen tokens reads per query.",
    "pipeline": "dense: attention over all tokens; q_outer, union, kv_outer, automatic: MSA's stages "
                "with sparse attention in that loop order.",
    "predicted_ms": "The roofline's time of all stages, in milliseconds.",
    "measured_ms": "Median time of the benchmark record, its stages added up, in milliseconds.",
    "predicted_over_measured": "The roofline's time over the measured one; 1 is as fast as the cost "
                               "model says the chip allows.",
    "P_b": "Mass of a block: attention probability summed over its tokens, mean over the query "
           "heads of the group.",
    "oracle": "The k blocks of highest mass P_b, the local block among them (I* in the paper).",
    "selector": "The rule that chooses k key blocks for each query and GQA group.",
    "k": "Selected blocks per query and group, the local block included.",
    "local block": "The block that holds the query itself; always selected.",
    "layer": "Layer of the model, numbered as in the input file.",
    "GQA group": "The query heads that share one key-value head, and here one selection.",
    "IoU": "Overlap of two selections: blocks in both over blocks in either.",
    "q_outer": "Loop order in which one query at a time walks its selected blocks.",
    "union": "Loop order in which a tile of neighbouring queries walks the union of their blocks.",
    "kv_outer": "Loop order in which each key block gathers the queries that selected it; partial "
                "outputs are combined afterwards.",
    "automatic": "Union for the blocks that enough of a tile's queries share, kv_outer for the rest.",
    "roofline": "The time that no kernel can beat: the larger of FLOPs over the chip's peak and "
                "bytes over its bandwidth.",
    "gini": "Unevenness of queries per block: 0 all blocks alike, 1 all queries on one block.",
}


def definitions(results: Results) -> dict[str, str]:
    recorded = {name: str(text) for name, text in results.run_json("definitions").items()}
    rules = {name: results.rule(name) for name in results.selectors}
    return {**GLOSSARY, **recorded, **{name: rule for name, rule in rules.items() if rule}}
