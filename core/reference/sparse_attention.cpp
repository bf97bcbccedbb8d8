// SPDX-License-Identifier: MIT
// eq:msa-sparse-attn
#include "core/reference/reference_backend.h"

namespace msa::reference {

void sparse_attention(const Problem& p, const MainBranch& in, View<const int32_t, 3> ids,
                      View<float, 3> out, View<float, 2> lse) {
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t h = 0; h < p.query_heads; ++h) {
            const KeyRange seen = visible[static_cast<size_t>(i)];
            const std::vector<int64_t> tokens = in_window(
                p, seen, support_tokens(seen, p.block_size, selected(ids, i, h / p.group_size())));
            lse(i, h) = static_cast<float>(attend(p, in, i, h, tokens, out[i][h]));
        }
}

}  // namespace msa::reference
