// SPDX-License-Identifier: MIT
// sparse_attention (eq:msa-sparse-attn) for few queries on Hopper. A cluster of thread blocks
// computes one (query, group); each takes some of its blocks. One launch.
#pragma once

#include "gpu/kernels/rank_exchange.h"
#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda {

struct SparseDecodeArgs : SparseCall {
    const void* q;              // [Nq, Hq, dh] of T
    bool q_settled;             // no earlier work in the stream writes q: it may be read early
    CUtensorMap k, v;           // as of SparseKvOuterArgs
    const QueryTile* of_query;  // [Nq], only for e4m3 and for pages: what a query's sequence is
    float scale;                // on q . k, above 0
    void* out;                  // [Nq, Hq, dh] of T, of bf16 where T is e4m3
    float* lse;                 // [Nq, Hq]
};

constexpr int kDecodeCluster = 8;  // thread blocks for a (query, group), at most
/// Clusters of the decode kernel, each for up to 16 heads of a (query, group).
constexpr int64_t sparse_decode_clusters(int64_t queries, int64_t groups, int64_t group_size) {
    return queries * groups * ceil_div(group_size, kDecodeHeads);
}
/// Operands of type T: __nv_bfloat16, __half or __nv_fp8_e4m3. With an exchange, outputs
/// are over the selected blocks of all ranks. A message has half of a head's channels:
/// [Nq, Hq, 2], kPartWords words each. All thread blocks must be on the chip at once: clusters
/// times kDecodeCluster are at most kMostExchanging.
template <typename T>
cudaError_t launch_sparse_decode_sm90(const SparseDecodeArgs&, cudaStream_t,
                                      const RankExchange* = nullptr);
constexpr int kPartWords = 33;  // one per lane, and one for the largest score and the sum
constexpr int64_t kMostExchanging = 128;

}  // namespace msa::cuda
