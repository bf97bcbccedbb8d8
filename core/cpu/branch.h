// SPDX-License-Identifier: MIT
// Queries and keys of the Main Branch or the Index Branch, as the loops by block take them.
#pragma once

#include "core/cpu/tile.h"
#include "core/problem.h"

namespace msa::cpu {

/// One branch: a group has G query heads in the Main Branch and one in the Index Branch.
struct Branch {
    View<const float, 3> q;  // [Nq, groups * heads, width]
    KeyTokens<float> keys;
    int64_t heads;
    LogitRule rule;
    int64_t window = kNoWindow;
    int64_t width() const { return q.extent(2); }
};
inline Branch main_branch(const Problem& p, View<const float, 3> q, const KeyTokens<float>& k) {
    return {q, k, p.group_size(), main_logits(p), p.window.value_or(kNoWindow)};
}
inline Branch index_branch(const Problem& p, View<const float, 3> index_q,
                           const KeyTokens<float>& index_k) {
    return {index_q, index_k, 1, {static_cast<float>(p.index_scale() * kLog2E)}};
}

}  // namespace msa::cpu
