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

/// The analysed queries of a layer: a sample of those that the options name.
measure::LayerQueries analyzed_queries(const AnalyzeOptions&, const io::ActivationsReader&,
                                       const io::LayerInfo&);

/// Analyses the given queries. A whole layer writes final datasets; a part writes sums that
/// join_layer combines. Keys and values are those of the whole layer. Queries are processed in
/// chunks of at most `chunk_queries` (0: as many as fit into a fixed memory budget), at least a
/// block; results do not depend on the chunks. Throws std::logic_error if a self-check fails,
/// Interrupted if a stop is requested.
void analyze_part(const AnalyzeOptions&, const io::ActivationsReader&, const LayerPart&,
                  const Worker&, io::UnitWriter&, int64_t chunk_queries = 0);

}  // namespace msa::experiments::analyze
