// SPDX-License-Identifier: MIT
// One layer of msa-reuse: its measures with its own ids and with those of each earlier layer.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "analysis/hardware.h"
#include "core/io/activations.h"
#include "experiments/driver/run.h"
#include "experiments/measure/queries.h"
#include "experiments/reuse/options.h"

namespace msa::experiments::reuse {

/// The baseline choice.
inline constexpr const char* kFloor = "random";

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

/// Measures `layer` with the ids of each of o.layers up to it, and writes /layers/<l>, /queries/<l>
/// and /reuse/<l>. Throws Interrupted if a stop is requested.
void reuse_layer(const ReuseOptions& o, const io::ActivationsReader&, const io::LayerInfo& layer,
                 const measure::LayerQueries&, OwnIds&, const analysis::Hardware&, const Worker&,
                 io::UnitWriter&);

}  // namespace msa::experiments::reuse
