// SPDX-License-Identifier: MIT
// eq:softmax-attention
#include "core/reference/reference_backend.h"

namespace msa::reference {

void dense_attention(const Problem& p, View<const float, 3> q, View<const float, 3> k,
                     View<const float, 3> v, View<float, 3> out, View<float, 2> lse) {
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const std::vector<int64_t> tokens = all_tokens(visible[static_cast<size_t>(i)]);
        for (int64_t h = 0; h < p.query_heads; ++h)
            lse(i, h) = static_cast<float>(
                attend(p.softmax_scale(), q[i][h], k, v, h / p.group_size(), tokens, out[i][h]));
    }
}

}  // namespace msa::reference
