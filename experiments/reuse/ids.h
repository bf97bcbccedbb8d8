// SPDX-License-Identifier: MIT
// What the layers select for themselves at the measured queries.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/io/activations.h"
#include "core/selection.h"
#include "experiments/driver/run.h"
#include "experiments/reuse/options.h"

namespace msa::experiments::reuse {

/// ids [n, Hkv, k] on the host that `selector` chooses for the packed `tokens` of a layer, k as the
/// selector makes it of o.rule. Throws Interrupted when a stop is requested.
Tensor<int32_t, 3> select_ids(const ReuseOptions& o, const io::ActivationsReader&,
                              const io::LayerInfo&, const std::string& selector,
                              std::span<const int64_t> tokens, Backend&);

/// The ids of every layer, computed when they are first asked for and kept. The layers that a
/// worker measures ask for those of all before them; which worker computes them changes no bit.
class OwnIds {
public:
    OwnIds(const ReuseOptions& o, const io::ActivationsReader& file, std::vector<int64_t> tokens)
        : o_(o), file_(file), tokens_(std::move(tokens)) {
        for (int64_t layer : o.layers) ids_[layer];
    }
    /// One of o.layers. For several threads at once, each with its own backend.
    View<const int32_t, 3> of(int64_t layer, Backend&);

private:
    struct Once {
        std::once_flag flag;
        Tensor<int32_t, 3> ids;
    };
    const ReuseOptions& o_;
    const io::ActivationsReader& file_;
    std::vector<int64_t> tokens_;
    std::map<int64_t, Once> ids_;
};

}  // namespace msa::experiments::reuse
