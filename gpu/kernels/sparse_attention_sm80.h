// SPDX-License-Identifier: MIT
// sparse_attention (eq:msa-sparse-attn) with the instructions of compute capability 8.0. Tiles,
// lists, slots and the two methods are those of sparse_attention_sm90.h.
#pragma once

#include "gpu/half_types.h"
#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda {

struct SparseOperands {
    const void *q, *k, *v;  // [Nq, Hq, dh], [Nk, Hkv, dh] of T
    int64_t keys;           // Nk
    float scale;            // on q . k, above 0
    void* out;              // [Nq, Hq, dh] of T, of bf16 where T is e4m3
    float* lse;             // [Nq, Hq]
};

struct SparseTilesArgs : SparseSchedule, SparseOperands {
    int round;
};

// One round, in this order; the first where any_slots(). T: __nv_bfloat16, __half or, in code for
// kFirstOfE4m3, __nv_fp8_e4m3.
template <typename T>
cudaError_t launch_sparse_kv_outer_sm80(const SparseTilesArgs&, int sms, cudaStream_t);
template <typename T>
cudaError_t launch_sparse_union_sm80(const SparseTilesArgs&, int sms, cudaStream_t);

/// Shared memory of a thread block of KV-outer, with operands of 16 bits.
constexpr int sparse_kv_outer_bytes_sm80(int64_t head_dim, int64_t block_size) {
    return static_cast<int>(2 * block_size * head_dim * kHalfBytes);
}

/// Thread blocks of split-K decode for 16 heads of a (query, group); each takes some of its blocks.
/// A second kernel merges the parts.
constexpr int kDecodeParts = 16;
struct SparsePartsArgs : SparseCall, SparseOperands {
    const QueryTile* of_query;  // as in SparseDecodeArgs
    float* parts;               // [decode_part_count(), kDecodeHeads, dh]
    float2* sums;  // [decode_part_count(), kDecodeHeads]: largest score, base 2, and sum
};
constexpr int64_t decode_part_count(int64_t queries, int64_t groups, int64_t group_size) {
    return queries * groups * ceil_div(group_size, kDecodeHeads) * kDecodeParts;
}
template <typename T>
cudaError_t launch_sparse_decode_sm80(const SparsePartsArgs&, cudaStream_t);

}  // namespace msa::cuda
