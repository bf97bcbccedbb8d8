// SPDX-License-Identifier: MIT
#include "experiments/fit/operands.h"

#include <utility>

#include "experiments/fit/architecture.h"

namespace msa::experiments::fit {

QueryOperands::QueryOperands(const LayerOperands& layer, const TrainingLayer& data,
                             std::span<const int64_t> tokens, Teacher teacher, int threads)
    : problem(data.problem.with_query_rows(tokens)),
      x(data.x.size() > 0 ? gather_rows(data.x, tokens) : Tensor<float, 3>()),
      host_q(gather_rows(data.q, tokens)),
      q(layer.backend, host_view(host_q)) {
    for (int64_t token : tokens) positions.push_back(data.positions[static_cast<size_t>(token)]);
    if (const auto make = fitted(data.architecture).target)
        target = make(layer, data, *this, teacher, threads);
}

IndexOperands::IndexOperands(Backend& backend, const IndexWeights& weights,
                             const TrainingLayer& data, const QueryOperands& queries, int threads)
    : IndexOperands(backend, weights,
                    index_keys(weights, data.key_input(), data.key_positions(), threads), queries,
                    threads) {}

IndexOperands::IndexOperands(Backend& backend, const IndexWeights& weights, Tensor<float, 3> keys,
                             const QueryOperands& queries, int threads)
    : host_q(index_queries(weights, rows_of(queries.x), queries.positions, threads)),
      host_k(std::move(keys)),
      q(backend, host_view(host_q)),
      k(backend, host_view(host_k)) {
    if (weights.form().traits().head_weights)
        host_weights = index_head_weights(weights, rows_of(queries.x), threads);
}

IndexOperands::operator IndexInput() const { return {q, rows_of(k.view().as<const float>())}; }

}  // namespace msa::experiments::fit
