// SPDX-License-Identifier: MIT
// Columns that several programs have, besides the metrics of analysis/metrics.h. A key means the
// same in every table of every program, which a test checks.
#pragma once

#include <cmath>

#include "experiments/report/table.h"

namespace msa::experiments::report {

// Columns that identify a row.
inline const Column kLayer{"layer", "", "number of the layer in the model", "layer"};
inline const Column kSelector{"selector", "",
                              "selector of blocks, with options that are not its "
                              "defaults",
                              "selector"};
inline const Column kSetting{"setting", "", "budget in tokens, and what else an ablation varies"};

// Sizes.
inline const Column kModel{"model", "", "name of the model"};
inline const Column kQueryHeads{"query_heads", "", "Hq: query heads"};
inline const Column kKvHeads{"kv_heads", "", "Hkv: key-value heads, the groups"};
inline const Column kHeadDim{"head_dim", "", "dh: channels of a head"};
inline const Column kIndexDim{"index_dim", "", "didx: channels of an index head"};
inline const Column kElement{"element", "", "type of the operands"};
inline const Column kTokens{.key = "tokens",
                            .unit = "tokens",
                            .definition = "tokens of the sequence: the context",
                            .heading = "context",
                            .form = {.words = tokens_text}};
inline const Column kBlockSize{"block_size", "tokens", "tokens of a block"};
inline const Column kTopK{"top_k", "blocks",
                          "k, blocks that a query and group keeps, forced ones included"};
inline const Column kForcedFirst{"forced_first", "blocks",
                                 "the oldest blocks, which every query keeps"};
inline const Column kForcedLocal{"forced_local", "blocks",
                                 "the newest blocks, which every query keeps, its own among them"};
inline const Column kWindow{"window", "tokens", "keys that a query attends to at most"};

// Columns about the measured queries.
inline const Column kMeasuredLayers{"layers", "", "layers measured, divided by spaces"};
inline const Column kQueries{"queries", "", "queries measured, in each layer"};
inline const Column kRowsCounted{"rows_counted", "queries",
                                 "queries in the averages of recall, mass and output error; "
                                 "averages go over queries, then over groups or heads"};
inline const Column kQueryBlocks{"blocks_of_queries", "",
                                 "blocks of neighbouring queries, 128 positions each, that the "
                                 "bootstrap draws from"};
inline const Column kSequences{"sequences", "", "sequences of the queries measured"};

// Stages of a layer, as the roofline or a clock times them.
inline const Column kStage{"stage", "", "name of the stage", "stage"};
inline const Column kStageFlops{"stage_flops", "FLOP", "floating-point operations of the stage"};
inline const Column kStageBytes{"stage_bytes", "B", "bytes to and from memory"};
inline const Column kOrder{
    "order", "",
    "q_outer: one query at a time walks its blocks. union: the neighbouring queries of a tile "
    "walk the union of their blocks. kv_outer: each block gathers its queries. automatic: union "
    "for the blocks that a tile shares, kv_outer for the rest",
    "order"};
// A layer that GPUs share.
inline const Column kRank{"rank", "", "number of the GPU"};
inline const Column kGatherBytes{.key = "gather_bytes",
                                 .unit = "B",
                                 .definition = "keys and values that a GPU gathers from the others",
                                 .heading = "gather\nMB",
                                 .form = {.decimals = -4, .per = 1e6}};
inline const Column kGatherSeconds{"gather_seconds", "s", "time of that gathering", "gather"};

// Costs of the roofline (experiments/driver/price.h).
inline const Column kSeconds{"seconds", "s",
                             "time of the layers at the context, by the roofline of the chip: "
                             "selection in layers that compute ids, then attention in the fastest "
                             "loop order; bf16, each layer for its share of the model's"};
inline const Column kFlops{"flops", "FLOP", "floating-point operations of that time"};
inline const Column kBytes{"bytes", "B", "bytes of GPU memory read and written in that time"};
inline const Column kShareOfDense{"share_of_dense", "1",
                                  "seconds, relative to dense attention in every layer"};
inline const Column kDenseSeconds{
    "dense_seconds", "s", "seconds of dense attention in the same layers at the same context"};
inline const Column kDenseFlops{"dense_flops", "FLOP",
                                "flops of dense attention in the same layers at the same context"};
inline const Column kDenseBytes{"dense_bytes", "B",
                                "bytes of dense attention in the same layers at the same context"};
inline const Column kIsExtrapolated{
    "is_extrapolated", "", "the context of the costs is longer than any sequence captured"};
inline const Column kIsBound{"is_bound", "",
                             "the selector needs dense attention, so its savings cannot be had"};

inline analysis::Estimate without_interval(double value) { return {value, NAN, NAN}; }

}  // namespace msa::experiments::report
