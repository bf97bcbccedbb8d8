// SPDX-License-Identifier: MIT
// One layer of msa-precision: what it keeps with its operands in each of the formats.
#pragma once

#include <span>

#include "core/backend.h"
#include "core/io/activations.h"
#include "core/number/quantize.h"
#include "experiments/driver/run.h"
#include "experiments/precision/options.h"

namespace msa::experiments::precision {

/// The type in which the backend's own kernel selects by operands of this precision; where it has
/// none, f32, which holds the same values.
Element select_element(const Backend&, const Problem&, const Precision&, int64_t top_k);
/// Likewise of attention over a cache of this precision; the queries stay as they are.
Element attend_element(const Backend&, const Problem&, const io::LayerInfo&, const Precision&,
                       int64_t top_k);

/// ids [Nq, Hkv, k] in the backend's space that an Index Branch selects whose operands are stored:
/// index_q [Nq, Hkv, didx], index_k [Nk, 1, didx] on the host, as store_as leaves them. The kernel
/// reads them as `element`, which holds them exactly.
Tensor<int32_t, 3> select_ids(Backend&, const Problem&, const SelectionRule&,
                              View<const float, 3> index_q, View<const float, 3> index_k,
                              Element element);

/// Measures `layer` with each of `precisions`, the first of which is full precision, and writes
/// /layers/<l>, /queries/<l> and /precision/<l>. Without an Index Branch the KV cache alone, with
/// dense attention. Throws Interrupted when a stop is requested.
void precision_layer(const PrecisionOptions&, std::span<const Precision> precisions,
                     const io::ActivationsReader&, const io::LayerInfo& layer, const Worker&,
                     io::UnitWriter&);

}  // namespace msa::experiments::precision
