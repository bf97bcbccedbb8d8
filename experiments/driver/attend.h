// SPDX-License-Identifier: MIT
// Calls of a backend from host tensors, with results on the host, wherever the backend works.
#pragma once

#include "experiments/driver/operands.h"

namespace msa::experiments {

/// About what a program holds of the queries that it works on at a time.
inline constexpr int64_t kChunkBytes = int64_t{1} << 28;

struct Attention {
    Tensor<float, 3> out;  // [Nq, Hq, dh]
    Tensor<float, 2> lse;  // [Nq, Hq]
};

/// Does attention on operands of this type leave its outputs in it? So it does where they are bf16
/// or f16: tuned kernels store no other.
inline bool is_stored_in_operands(Element operands) {
    return operands == Element::bf16 || operands == Element::f16;
}

/// Attention over the blocks `ids` [Nq, Hkv, k] in the backend's space; dense without ids. Outputs
/// are rounded on their way to the host where is_stored_in_operands().
Attention attend(Backend&, const Problem&, const AttentionInput&, View<const int32_t, 3> ids);

/// Attention over the blocks `ids` on the host.
Attention attend_selected(Backend&, const Problem&, const AttentionInput&,
                          View<const int32_t, 3> ids);

/// Mean over queries and groups of the entropy of the index distribution over all visible keys:
/// attention with index_q [Nq, Hkv, didx] as queries of one shared key head, index_k
/// [Nk, 1, didx]. host_q is index_q on the host.
struct IndexHeads {
    In<3> q, k;
};
double index_entropy(Backend&, const Problem&, const IndexHeads&, View<const float, 3> host_q);

/// P_b, and the largest logits where wanted, in the backend's space.
struct Mass {
    Mass(Backend&, const Problem&, const BlockMassInput&, bool logits);
    Tensor<float, 3> mass, max_logit;  // [Nq, Hkv, B]
};

/// ids [Nq, Hkv, k] on the host from float scores [Nq, Hkv, B] in the backend's space.
Tensor<int32_t, 3> pick(Backend&, const Problem&, const SelectionRule&, In<3> scores);

}  // namespace msa::experiments
