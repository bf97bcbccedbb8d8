// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include "core/mirror.h"
#include "experiments/compare/layer_data.h"
#include "experiments/driver/attend.h"
#include "experiments/driver/own_attention.h"

namespace msa::experiments::compare {

/// The layer as one view of its heads has it, in the backend's space and on the host.
struct LayerView {
    LayerView(Backend& backend, const LayerData& data, Problem problem, size_t view)
        : index(view),
          whole(std::move(problem)),
          k_there(backend, host_view(data.k), data.elements.main.computed),
          v_there(backend, host_view(data.v), data.elements.main.computed),
          index_k_there(backend, host_index_k(data), data.elements.index.computed),
          host_sinks(data.sinks(view)),
          sinks(backend, host_sinks),
          k(backend, k_there.view(), host_view(data.k)),
          v(backend, v_there.view(), host_view(data.v)) {
        if (data.index_k.data() != nullptr)
            index_k = {backend, index_k_there.view(), host_index_k(data)};
    }
    size_t index;
    Problem whole;
    Operand<3> k_there, v_there;
    Operand<2> index_k_there;
    Tensor<float, 1> host_sinks;
    Sinks sinks;
    Mirror<3> k, v;
    Mirror<2> index_k;

private:
    static View<const float, 2> host_index_k(const LayerData& data) {
        return {data.index_k.data(), {data.index_k.extent(0), data.index_k.extent(2)}};
    }
};

}  // namespace msa::experiments::compare
