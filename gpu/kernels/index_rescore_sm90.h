// SPDX-License-Identifier: MIT
// index_select by an int8 copy of index_k: what depends on the operands' type.
#pragma once

#include <cuda.h>

#include "gpu/kernels/index_candidates.h"

namespace msa::cuda {

/// Rounds index_q, `rows` rows of `width` channels, 64 or 128, to int8.
template <typename T>
cudaError_t launch_coarse_rows(const void* index_q, int64_t rows, int width, float scale,
                               int8_t* to, CoarseRow* bounds, cudaStream_t);

struct RescoreArgs {
    IndexCandidates candidates;
    const void* index_q;                   // [rows of the piece, didx]
    CUtensorMap index_k;                   // as in IndexSelectArgs
    const SequenceBlock* sequence_blocks;  // [all_blocks]
    int thread_blocks;
};
/// The scores of all uses, bit for bit those that index_select_sm90 compares.
template <typename T>
cudaError_t launch_rescore(const RescoreArgs&, cudaStream_t);

}  // namespace msa::cuda
