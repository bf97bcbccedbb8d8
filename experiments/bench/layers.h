// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <vector>

#include "experiments/bench/meter.h"
#include "experiments/bench/operands.h"

namespace msa::experiments::bench {

// Consecutive calls hide launch latency, as in serving. Each has its own layer, so none finds its
// operands in the cache.
constexpr int64_t kMostLayers = 8;

/// The layers of one case, with equal operands in separate memory. Results of the first are
/// checked; calls over all of them are timed.
class Layers {
public:
    /// Allocates as many layers as fit into memory, at least one, with the operands in `parts`.
    /// Throws MemoryError or std::bad_alloc.
    Layers(Backend&, Meter&, const BenchOptions&, const Case&, Parts parts);

    Layer& first() { return layers_.front(); }
    std::vector<Layer>& all() { return layers_; }
    /// Copies the first one's operands to the others.
    void copy_to_others(Parts);
    /// Overwrites the first one's results of attention and of the gradients, or its ids.
    void poison_results();
    void poison_ids();
    /// Times `call` over all of them.
    Timing time(const std::function<void(Layer&)>& call);

private:
    Backend& backend_;
    Meter& meter_;
    const BenchOptions& o_;
    Parts parts_;
    std::vector<Layer> layers_;
};

/// The lse that a forward pass leaves for index_kl of some queries (LSE fusion).
struct GivenLse {
    Tensor<int32_t, 3> ids;  // [Nq, Hkv, k] of the selected support; absent: the full one
    Tensor<float, 2> main, index;
};

/// For the queries of `p`, with rows `q` and index.index_q, over the keys of `layer`. top_k 0: on
/// the full support.
GivenLse forward_lse(Backend&, const Problem& p, const Layer& layer, const Stored<3>& q,
                     const IndexInput& index, int64_t top_k);

/// Computes layer.index_lse of all queries on the full support: the lse of dense attention of the
/// Index Branch, with groups as query heads on one key head.
void full_index_lse(Backend&, const Problem& p, const IndexOperands&, Layer& layer);

}  // namespace msa::experiments::bench
