// SPDX-License-Identifier: MIT
// One layer of msa-precision: its measures with operands in each format.
#pragma once

#include <span>

#include "core/backend.h"
#include "core/indexer/index_branch.h"
#include "core/io/activations.h"
#include "core/number/quantize.h"
#include "experiments/driver/run.h"
#include "experiments/precision/options.h"

namespace msa::experiments::precision {

/// The element type in which the backend's kernel selects with operands of this precision, or f32,
/// which holds the same values, if it has none.
Element select_element(const Backend&, const Problem&, const Precision&, int64_t top_k);
/// The same for attention over a cache of this precision; queries are unchanged.
Element attend_element(const Backend&, const Problem&, const io::LayerInfo&, const Precision&,
                       int64_t top_k);

/// ids [Nq, Hkv, k], in the backend's space, that an Index Branch selects with stored operands:
/// index_q [Nq, Hkv, didx], index_k [Nk, 1, didx] on the host, after store_as. The kernel reads
/// them as `element`, which represents them exactly.
Tensor<int32_t, 3> select_ids(Backend&, const Problem&, const SelectionRule&,
                              View<const float, 3> index_q, View<const float, 3> index_k,
                              Element element);

/// Measures `layer` with each of `precisions`, the first of which is full precision, and writes
/// /layers/<l>, /queries/<l> and /precision/<l>. Where there are `weights`, the index operands are
/// x projected by them, which is measured with each of projections() too. Without an Index Branch,
/// measures only the KV cache with dense attention. Throws Interrupted if a stop is requested.
void precision_layer(const PrecisionOptions&, std::span<const Precision> precisions,
                     const io::ActivationsReader&, const io::LayerInfo& layer,
                     const IndexWeights* weights, const Worker&, io::UnitWriter&);

}  // namespace msa::experiments::precision
