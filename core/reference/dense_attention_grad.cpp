// SPDX-License-Identifier: MIT
// The gradient of eq:softmax-attention
#include "core/reference/attention_grad.h"
#include "core/reference/reference_backend.h"

namespace msa::reference {

void dense_attention_grad(const Problem& p, const AttentionInput& in, const AttentionSaved& saved,
                          const AttentionGradient& to) {
    AttentionGrad grad(p, in, saved, to);
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const std::vector<int64_t> tokens = all_tokens(visible[static_cast<size_t>(i)]);
        for (int64_t h = 0; h < p.query_heads; ++h) grad.add_row(i, h, tokens);
    }
    grad.finish();
}

}  // namespace msa::reference
