# SPDX-License-Identifier: MIT
"""What the words of the pictures and of the table of averages mean. What an average means, the program that
wrote it recorded."""

from __future__ import annotations

from .results import Results
from .summary import VALUES

GLOSSARY = {
    "budget": "Tokens that a query may attend to.",
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
    "window": "Tokens that a layer with a sliding window attends to; it stays as it is, and is in no mean.",
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
    recorded = {name: str(text) for name, text in results.run_json("definitions").items() if name in VALUES}
    rules = {name: results.rule(name) for name in results.selectors}
    return {**GLOSSARY, **recorded, **{name: rule for name, rule in rules.items() if rule}}
