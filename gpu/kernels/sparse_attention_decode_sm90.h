// SPDX-License-Identifier: MIT
// sparse_attention (eq:msa-sparse-attn) for few queries on Hopper: a cluster of thread blocks
// answers one (query, group), each a part of its blocks. One launch.
#pragma once

#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda {

struct SparseDecodeArgs : SparseCall {
    const void* q;     // [Nq, Hq, dh] bf16
    bool q_settled;    // nothing ahead in the stream writes q: it may be read early
    CUtensorMap k, v;  // [Nk, Hkv * dh] bf16, boxes of Bk keys x 64 channels
    float scale;       // on q . k, above 0
    void* out;         // [Nq, Hq, dh] bf16
    float* lse;        // [Nq, Hq]
};

/// Thread blocks of the decode kernel, which is best while they fill the chip a few times at most.
int64_t sparse_decode_blocks(int64_t queries, int64_t groups, int64_t group_size);
cudaError_t launch_sparse_decode_sm90(const SparseDecodeArgs&, cudaStream_t);

}  // namespace msa::cuda
