// SPDX-License-Identifier: MIT
#include "core/select/lightning.h"

#include <algorithm>

#include "core/select/rows_held.h"

namespace msa {
void for_each_lightning_row(
    const SelectorLayer& layer, const SelectorChunk& chunk,
    const std::function<void(int64_t row, View<const float, 1> scores)>& visit) {
    Backend& backend = layer.backend;
    Problem tokens = chunk.problem;
    tokens.block_size = 1;
    tokens.own_index_scale = 1.0;
    const int64_t groups = tokens.kv_heads, keys = tokens.blocks();
    const int64_t step = rows_held(groups * keys);
    const View<const float, 3> index_q = chunk.index_q.floats();
    for (int64_t begin = 0; begin < tokens.queries(); begin += step) {
        const int64_t count = std::min(step, tokens.queries() - begin);
        const Problem part = tokens.with_queries({begin, begin + count});
        auto there = backend.make<float, 3>({count, groups, keys});
        backend.index_scores(part, {index_q.slice(begin, count), layer.index_k.floats()}, there);
        const Mirror<3> products(backend, std::move(there));
        const View<const float, 3> from = products.host();
        const std::vector<KeyRange>& visible = visible_keys(part);
#pragma omp parallel for num_threads(backend.host_threads())
        for (int64_t i = 0; i < count; ++i) {
            const int64_t seen = visible[static_cast<size_t>(i)].count;
            Tensor<float, 1> sums({seen});
            for (int64_t r = 0; r < groups; ++r)
                for (int64_t j = 0; j < seen; ++j) sums(j) += std::max(from(i, r, j), 0.0F);
            visit(begin + i, sums);
        }
    }
}

}  // namespace msa
