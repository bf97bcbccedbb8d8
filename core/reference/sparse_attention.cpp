// SPDX-License-Identifier: MIT
// eq:msa-sparse-attn
#include "core/reference/reference_backend.h"

namespace msa::reference {

void sparse_attention(const Problem& p, View<const float, 3> q, View<const float, 3> k,
                      View<const float, 3> v, View<const int32_t, 3> ids, View<float, 3> out,
                      View<float, 2> lse) {
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t h = 0; h < p.query_heads; ++h) {
            const int64_t group = h / p.group_size();
            const std::vector<int64_t> tokens = support_tokens(
                visible[static_cast<size_t>(i)], p.block_size, selected(ids, i, group));
            lse(i, h) = static_cast<float>(
                attend(p.softmax_scale(), q[i][h], k, v, group, tokens, out[i][h]));
        }
}

}  // namespace msa::reference
