// SPDX-License-Identifier: MIT
// The gradient of eq:msa-sparse-attn; none through ids
#include "core/reference/attention_grad.h"
#include "core/reference/reference_backend.h"

namespace msa::reference {

void sparse_attention_grad(const Problem& p, const AttentionInput& in, View<const int32_t, 3> ids,
                           const AttentionSaved& saved, const AttentionGradient& to) {
    AttentionGrad grad(p, in, saved, to);
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t h = 0; h < p.query_heads; ++h)
            grad.add_row(i, h,
                         support_tokens(visible[static_cast<size_t>(i)], p.block_size,
                                        selected(ids, i, h / p.group_size())));
    grad.finish();
}

}  // namespace msa::reference
