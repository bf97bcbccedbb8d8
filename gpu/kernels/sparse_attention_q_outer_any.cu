// SPDX-License-Identifier: MIT
// eq:msa-sparse-attn, one thread block per query and group: it walks the query's blocks.
#include "gpu/device/support.cuh"
#include "gpu/kernels/kernels.h"

namespace msa::cuda {

void sparse_attention_q_outer_any(const Call& call, const AttentionInput& in,
                                  View<const int32_t, 3> ids, const AttentionOutput& to) {
    by_index_element(in.q.element(), [&]<typename T>() {
        attend_to_support(call, sparse_heads<T>(call.problem, call.layout, in),
                          key_support(call, ids), output(to.out), to.lse.data());
    });
}

}  // namespace msa::cuda
