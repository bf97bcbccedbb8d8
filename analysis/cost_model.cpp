// SPDX-License-Identifier: MIT
#include "analysis/cost_model.h"

#include <algorithm>

#include "core/selection.h"

namespace msa::analysis {

double causal_pairs(const Problem& p) {
    double pairs = 0;
    for (const KeyRange& seen : visible_keys(p)) pairs += static_cast<double>(seen.count);
    return pairs;
}

double selected_pairs(const Problem& p, View<const int32_t, 3> ids) {
    const std::vector<KeyRange> visible = visible_keys(p);
    double pairs = 0;
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t b : selected(ids, i, r))
                pairs += static_cast<double>(std::min(
                    p.block_size, visible[static_cast<size_t>(i)].count - b * p.block_size));
    return pairs;
}

double dense_attention_flops(const Problem& p) { return 2 * block_mass_flops(p); }

double block_mass_flops(const Problem& p) {
    return 2 * static_cast<double>(p.query_heads * p.head_dim) * causal_pairs(p);
}

double index_scores_flops(const Problem& p) {
    return 2 * static_cast<double>(p.kv_heads * p.index_dim) * causal_pairs(p);
}

double sparse_attention_flops(const Problem& p, View<const int32_t, 3> ids) {
    return 4 * static_cast<double>(p.group_size() * p.head_dim) * selected_pairs(p, ids);
}

double index_kl_flops(const Problem& p, double pairs) {
    const auto main = static_cast<double>(p.group_size() * p.head_dim);
    return 2 * (main + 3 * static_cast<double>(p.index_dim)) * pairs;
}

}  // namespace msa::analysis
