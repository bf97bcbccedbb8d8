// SPDX-License-Identifier: MIT
// The layers' own selections at the measured queries.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/io/activations.h"
#include "experiments/measure/queries.h"
#include "experiments/reuse/options.h"

namespace msa::experiments::reuse {

/// The ids of every layer, computed on first use and kept. Measuring a layer needs the ids of all
/// earlier ones; which worker computes them changes no bit.
class OwnIds {
public:
    OwnIds(const ReuseOptions& o, const io::ActivationsReader& file,
           const measure::LayerQueries& queries)
        : o_(o), file_(file), queries_(queries) {
        for (int64_t layer : o.layers) ids_[layer];
    }
    /// The ids of one of o.layers. Thread-safe; each thread has its own backend. Throws Interrupted
    /// if a stop is requested.
    View<const int32_t, 3> of(int64_t layer, Backend&);

private:
    struct Once {
        std::once_flag flag;
        Tensor<int32_t, 3> ids;
    };
    const ReuseOptions& o_;
    const io::ActivationsReader& file_;
    const measure::LayerQueries& queries_;
    std::map<int64_t, Once> ids_;
};

}  // namespace msa::experiments::reuse
