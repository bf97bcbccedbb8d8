// SPDX-License-Identifier: MIT
// Backend calls with results on the host, for any backend.
#pragma once

#include "experiments/driver/operands.h"

namespace msa::experiments {

/// Approximate memory of the queries that a program processes at a time.
inline constexpr int64_t kChunkBytes = int64_t{1} << 28;

struct Attention {
    Tensor<float, 3> out;  // [Nq, Hq, dh]
    Tensor<float, 2> lse;  // [Nq, Hq]
};

/// Whether attention's outputs have the operands' type: so for bf16 and f16, since tuned kernels
/// store no other type.
inline bool is_stored_in_operands(Element operands) {
    return operands == Element::bf16 || operands == Element::f16;
}

/// Attention over the blocks `ids` [Nq, Hkv, k] in the backend's space; dense without ids. If
/// is_stored_in_operands(), outputs are rounded before they reach the host.
Attention attend(Backend&, const Problem&, const AttentionInput&, View<const int32_t, 3> ids);

/// Attention over the blocks `ids` on the host.
Attention attend_selected(Backend&, const Problem&, const AttentionInput&,
                          View<const int32_t, 3> ids);

/// Index operands as attention heads: index_q [Nq, Hkv, didx] are queries of one shared key head,
/// index_k [Nk, 1, didx].
struct IndexHeads {
    In<3> q, k;
};
/// Mean over queries and groups of the entropy of the index distribution over all visible keys.
/// host_q is index_q on the host.
double index_entropy(Backend&, const Problem&, const IndexHeads&, View<const float, 3> host_q);

/// P_b and, if requested, the largest logits, in the backend's space.
struct Mass {
    Mass(Backend&, const Problem&, const BlockMassInput&, bool logits);
    Tensor<float, 3> mass, max_logit;  // [Nq, Hkv, B]
};

/// ids [Nq, Hkv, k] on the host from float scores [Nq, Hkv, B] in the backend's space.
Tensor<int32_t, 3> pick(Backend&, const Problem&, const SelectionRule&, In<3> scores);

}  // namespace msa::experiments
