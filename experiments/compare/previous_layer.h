// SPDX-License-Identifier: MIT
// P_b of another layer at the compared queries. Reads its keys for the first chunk, its queries
// chunk by chunk.
#pragma once

#include <optional>
#include <span>

#include "core/io/activations.h"
#include "core/mirror.h"
#include "experiments/compare/options.h"
#include "experiments/driver/attend.h"

namespace msa::experiments::compare {

class PreviousLayer {
public:
    PreviousLayer(const io::ActivationsReader& file, const io::LayerInfo& layer,
                  const LayerElements& elements, int64_t views, Backend& backend)
        : file_(file),
          layer_(layer),
          elements_(elements),
          read_(file, layer_, elements_),
          views_(views),
          backend_(backend) {}
    PreviousLayer(const PreviousLayer&) = delete;
    PreviousLayer& operator=(const PreviousLayer&) = delete;

    /// [n, Hkv, B] for the packed `tokens` of a view.
    Mirror<3> mass(std::span<const int64_t> tokens, int64_t block_size, size_t view);

private:
    const io::ActivationsReader& file_;
    const io::LayerInfo& layer_;
    LayerElements elements_;
    LayerReader read_;
    int64_t views_;  // LayerData::views
    Backend& backend_;
    Tensor<float, 3> host_k_;
    std::optional<Operand<3>> k_;
};

}  // namespace msa::experiments::compare
