// SPDX-License-Identifier: MIT
// sparse_attention (eq:msa-sparse-attn) for few queries on Hopper: a cluster of thread blocks
// answers one (query, group), each a part of its blocks. One launch.
#pragma once

#include "gpu/kernels/rank_exchange.h"
#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda {

struct SparseDecodeArgs : SparseCall {
    const void* q;              // [Nq, Hq, dh] of T
    bool q_settled;             // nothing ahead in the stream writes q: it may be read early
    CUtensorMap k, v;           // [Nk, Hkv * dh] of T, boxes of Bk keys x 128 bytes
    const QueryTile* of_query;  // [Nq], of e4m3 alone, for the number of the sequence's first block
    float scale;                // on q . k, above 0
    void* out;                  // [Nq, Hq, dh] of T, of bf16 where T is e4m3
    float* lse;                 // [Nq, Hq]
};

constexpr int kDecodeCluster = 8;  // thread blocks that answer a (query, group) together
/// Thread blocks of the decode kernel, which is best while they fill the chip a few times at most.
constexpr int64_t sparse_decode_blocks(int64_t queries, int64_t groups, int64_t group_size) {
    return queries * groups * ceil_div(group_size, kDecodeHeads) * kDecodeCluster;
}
/// Operands of type T: __nv_bfloat16, __half or __nv_fp8_e4m3.
/// With an exchange, which e4m3 does not take, outputs are those over the selected blocks of all
/// ranks. A message is half of a head's channels: [Nq, Hq, 2], of kPartWords words. All thread
/// blocks must be on the chip at once: at most kMostExchanging.
template <typename T>
cudaError_t launch_sparse_decode_sm90(const SparseDecodeArgs&, cudaStream_t,
                                      const RankExchange* = nullptr);
constexpr int kPartWords = 33;  // one of each lane, and the largest score with the sum
constexpr int64_t kMostExchanging = 128;

}  // namespace msa::cuda
