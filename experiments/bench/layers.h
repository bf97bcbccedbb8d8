// SPDX-License-Identifier: MIT
#pragma once

#include <functional>
#include <vector>

#include "experiments/bench/meter.h"
#include "experiments/bench/operands.h"

namespace msa::experiments::bench {

// Calls in a row hide the latency of a launch, as in serving, and each has a layer of its own, so
// that none finds its operands in the cache.
constexpr int64_t kMostLayers = 8;

/// The layers of one case, with alike operands in memory of their own. The first one's results are
/// checked; calls over all of them are timed.
class Layers {
public:
    /// As many as there is memory for, one at least, with the operands of attention and of its
    /// gradient where `parts` has them. Throws MemoryError, or std::bad_alloc.
    Layers(Backend&, Meter&, const BenchOptions&, const Case&, Parts parts);

    Layer& first() { return layers_.front(); }
    std::vector<Layer>& all() { return layers_; }
    /// Gives the others the first one's operands.
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

}  // namespace msa::experiments::bench
