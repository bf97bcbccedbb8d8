// SPDX-License-Identifier: MIT
#pragma once

#include <utility>

#include "experiments/compare/layer_data.h"
#include "experiments/driver/attend.h"

namespace msa::experiments::compare {

/// The layer as one view of its heads has it, in the backend's space.
struct LayerView {
    LayerView(Backend& backend, const LayerData& data, Problem problem, size_t view)
        : index(view),
          whole(std::move(problem)),
          host_q(data.q[view].view()),
          k(backend, host_view(data.k), data.elements.main.computed),
          v(backend, host_view(data.v), data.elements.main.computed),
          index_k(backend, rows_of(data.index_k), data.elements.index.computed) {}
    size_t index;
    Problem whole;
    View<const float, 3> host_q;
    Operand<3> k, v;
    Operand<2> index_k;
};

}  // namespace msa::experiments::compare
