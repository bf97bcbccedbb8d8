// SPDX-License-Identifier: MIT
#include "experiments/compare/previous_layer.h"

#include "experiments/compare/layer_data.h"
#include "experiments/driver/own_attention.h"

namespace msa::experiments::compare {

Mirror<3> PreviousLayer::mass(std::span<const int64_t> tokens, int64_t block_size, size_t view) {
    if (!k_) {
        host_k_ = read_.all(io::Field::k);
        k_.emplace(backend_, host_view(host_k_), elements_.main.computed);
    }
    Problem p = io::layer_problem(file_.info(), layer_, block_size).with_query_rows(tokens);
    Tensor<float, 3> rows = read_.rows(io::Field::q, tokens);
    const int64_t views = sharing_ == Sharing::head ? p.group_size() : 1;
    if (sharing_ == Sharing::head) {
        rows = one_of_each_group(rows, views, static_cast<int64_t>(view));
        p.query_heads = p.kv_heads;
    }
    const Sinks sinks(backend_, sinks_of_view(layer_, views, static_cast<int64_t>(view)));
    const Operand<3> q(backend_, host_view(rows), elements_.main.computed);
    Mirror<3> mass(backend_, Mass(backend_, p, {q.view(), k_->view(), sinks}, false).mass);
    backend_.finish();
    return mass;
}

}  // namespace msa::experiments::compare
