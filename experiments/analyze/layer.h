// SPDX-License-Identifier: MIT
// One layer of msa-analyze: streams its queries in chunks, all selectors sharing the dense pass.
#pragma once

#include <vector>

#include "core/io/activations.h"
#include "experiments/analyze/options.h"
#include "experiments/driver/run.h"

namespace msa::experiments::analyze {

/// Packed tokens of a layer's analysed queries, ascending: those that the options name, or a
/// stratified sample of them, one draw in each of sample_queries equal parts.
std::vector<int64_t> choose_queries(const AnalyzeOptions&, const std::vector<int64_t>& cu_seqlens,
                                    int64_t layer);

/// Analyses a layer at these of its queries (choose_queries) and writes its datasets to the unit,
/// or of a part of the layer what join_layer (join.h) makes them of. Keys and values are those of
/// the whole layer. The results do not depend on how the queries are cut into chunks of at most
/// `chunk_queries` (0: as many as fit into a fixed memory budget). Throws Interrupted when a stop
/// is requested.
void analyze_part(const AnalyzeOptions&, const io::ActivationsReader&, const LayerPart&,
                  const Worker&, io::UnitWriter&, int64_t chunk_queries = 0);

}  // namespace msa::experiments::analyze
