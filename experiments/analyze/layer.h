// SPDX-License-Identifier: MIT
// One layer of msa-analyze, or a part of its queries.
#pragma once

#include <filesystem>
#include <vector>

#include "core/io/activations.h"
#include "experiments/analyze/options.h"
#include "experiments/driver/run.h"
#include "experiments/measure/queries.h"

namespace msa::experiments::analyze {

/// A layer's analysed queries: a sample of those that the options name.
measure::LayerQueries analyzed_queries(const AnalyzeOptions&, const io::ActivationsReader&,
                                       const io::LayerInfo&);

/// Analyses the given queries. A whole layer writes final datasets; a part writes sums that
/// join_layer combines. Keys and values are those of the whole layer. The results do not
/// depend on how the queries are cut into chunks of at most `chunk_queries` (0: as many as fit into
/// a fixed memory budget) but at least a block. Throws std::logic_error where a self-check fails,
/// Interrupted when a stop is requested.
void analyze_part(const AnalyzeOptions&, const io::ActivationsReader&, const LayerPart&,
                  const Worker&, io::UnitWriter&, int64_t chunk_queries = 0);

}  // namespace msa::experiments::analyze
