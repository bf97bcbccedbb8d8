// SPDX-License-Identifier: MIT
#include "experiments/compare/previous_layer.h"

#include "experiments/measure/layer.h"

namespace msa::experiments::compare {

Mirror<3> PreviousLayer::mass(std::span<const int64_t> tokens, int64_t block_size, size_t view) {
    if (!k_) {
        host_k_ = read_.all(io::Field::k);
        k_.emplace(backend_, host_view(host_k_), elements_.main.computed);
    }
    Problem p = io::layer_problem(file_.info(), layer_, block_size).with_query_rows(tokens);
    Tensor<float, 3> rows = read_.rows(io::Field::q, tokens);
    if (views_ > 1) {
        rows = measure::one_of_each_group(rows, views_, static_cast<int64_t>(view));
        p.query_heads = p.kv_heads;
    }
    const Sinks sinks(backend_, measure::sinks_of_view(layer_, views_, static_cast<int64_t>(view)));
    const Operand<3> q(backend_, host_view(rows), elements_.main.computed);
    Mirror<3> mass(backend_, Mass(backend_, p, {q.view(), k_->view(), sinks}, false).mass);
    backend_.finish();
    return mass;
}

}  // namespace msa::experiments::compare
