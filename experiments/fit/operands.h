// SPDX-License-Identifier: MIT
// The operands of a fit in the backend's space. Weights, projections and AdamW are on the host.
#pragma once

#include <cstdint>
#include <span>

#include "core/indexer/index_branch.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/layers.h"
#include "experiments/fit/data.h"

namespace msa::experiments::fit {

/// The operands that no step changes. Refers to the layer.
struct LayerOperands {
    LayerOperands(Backend& backend_used, const TrainingLayer& data)
        : backend(backend_used),
          k(backend, data.k.view()),
          v(backend, data.v.view()),
          sinks(backend, io::layer_sinks(data.info)) {}
    Backend& backend;
    Operand<3> k, v;  // [N, Hkv, dh]
    Sinks sinks;      // [Hq]
};

/// Rows of x and q, and values of them that do not depend on the weights. Refers to the layer.
struct QueryOperands {
    /// `teacher` and `threads`: for a teacher over keys of several tokens, which is computed here.
    QueryOperands(const LayerOperands&, const TrainingLayer&, std::span<const int64_t> tokens,
                  Teacher teacher, int threads);
    Problem problem;  // these queries against all keys
    std::vector<int64_t> positions;
    Tensor<float, 3> x;  // [n, 1, d_model], where the layer has it
    Tensor<float, 3> host_q;
    Operand<3> q;             // [n, Hq, dh]
    Tensor<float, 3> target;  // [n, Hkv, keys of several tokens]: what the teacher gives each
};

/// Index operands of some queries and all keys.
struct IndexOperands {
    IndexOperands(Backend&, const IndexWeights&, const TrainingLayer&, const QueryOperands&,
                  int threads);
    /// `keys` are the result of index_keys.
    IndexOperands(Backend&, const IndexWeights&, Tensor<float, 3> keys, const QueryOperands&,
                  int threads);
    operator IndexInput() const;
    Tensor<float, 3> host_q, host_k;
    Tensor<float, 3> host_weights;  // [n, 1, heads]; absent if the form has none
    Operand<3> q, k;                // [n, heads, didx], [N, 1, didx], pooled [keys, heads, didx]
};

}  // namespace msa::experiments::fit
