// SPDX-License-Identifier: MIT
#include "core/select/gate_scores.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/indexer/gate_kl.h"

namespace msa {
namespace {

/// A softmax of scale * products, in place.
void soften(float* products, int64_t count, double scale) {
    if (count <= 0) return;
    const double top = *std::max_element(products, products + count);
    double sum = 0;
    for (int64_t b = 0; b < count; ++b) sum += std::exp(scale * (double{products[b]} - top));
    for (int64_t b = 0; b < count; ++b)
        products[b] = static_cast<float>(std::exp(scale * (double{products[b]} - top)) / sum);
}

}  // namespace

GateScores::GateScores(const SelectorLayer& layer, View<const float, 3> gate_k) {
    const int64_t blocks = block_starts(layer.problem).back();
    require(gate_k.extent(0) == blocks, "gate_k has ", gate_k.extent(0),
            " blocks, the sequences have ", blocks, " of ", layer.problem.block_size,
            " tokens; they must agree");
    Tensor<float, 3> of_groups({gate_k.extent(1), blocks, gate_k.extent(2)}, Fill::nothing);
    for (int64_t b = 0; b < blocks; ++b)
        for (int64_t r = 0; r < gate_k.extent(1); ++r)
            std::copy_n(gate_k[b][r].data(), gate_k.extent(2), of_groups.view()[r][b].data());
    products_.emplace(layer, of_groups);
}

Tensor<float, 3> GateScores::score(Backend& backend, const Problem& p,
                                   View<const float, 3> gate_q) const {
    Tensor<float, 3> scores = products_->score(backend, p, gate_q);
    const std::vector<KeyRange>& visible = visible_keys(p);
    const double scale = 1 / std::sqrt(static_cast<double>(gate_q.extent(2)));
#pragma omp parallel for num_threads(backend.host_threads())
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const int64_t own = own_block(visible[static_cast<size_t>(i)].count, p.block_size);
            soften(&scores(i, r, 0), own, scale);
            if (own >= 0) scores(i, r, own) = 0;
        }
    return scores;
}

}  // namespace msa
