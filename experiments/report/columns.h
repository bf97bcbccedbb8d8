// SPDX-License-Identifier: MIT
// Columns that several programs have, beside the metrics of analysis/metrics.h. A key means the
// same in every table of every program; a test holds all of them against each other.
#pragma once

#include "experiments/report/table.h"

namespace msa::experiments::report {

// What a row is of.
inline const Column kLayer{"layer", "", "number of the layer in the model", "layer"};
inline const Column kSelector{"selector", "",
                              "selector of blocks, with options that are not its "
                              "defaults",
                              "selector"};

// Sizes.
inline const Column kTokens{.key = "tokens",
                            .unit = "tokens",
                            .definition = "tokens of the sequence: the context",
                            .heading = "context",
                            .form = {.words = tokens_text}};
inline const Column kBlockSize{"block_size", "tokens", "tokens of a block"};
inline const Column kTopK{"top_k", "blocks",
                          "k, blocks that a query and group keeps, forced ones included"};
inline const Column kWindow{"window", "tokens", "keys that a query attends to at most"};

// What was measured.
inline const Column kQueries{"queries", "", "queries measured, in each layer"};
inline const Column kQueryBlocks{"blocks_of_queries", "",
                                 "blocks of neighbouring queries, 128 positions each, that the "
                                 "bootstrap draws from"};
inline const Column kSequences{"sequences", "", "sequences of the queries measured"};

// Costs of the roofline (experiments/driver/price.h).
inline const Column kSeconds{"seconds", "s",
                             "time of the layers at the context, by the roofline of the chip: "
                             "selection in layers that compute ids, then attention in the fastest "
                             "loop order; bf16, each layer for its share of the model's"};
inline const Column kFlops{"flops", "FLOP", "floating-point operations of that time"};
inline const Column kBytes{"bytes", "B", "bytes of GPU memory read and written in that time"};

}  // namespace msa::experiments::report
