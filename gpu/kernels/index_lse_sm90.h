// SPDX-License-Identifier: MIT
// The lse of the index scores by blocks on Hopper: launch_kl_slot_lse of index_kl_blocks.h with
// wgmma.
//
// At N 128K, 4 groups, k 16 of 128 keys and index dim 128 there are 8.4 million uses (query, group,
// block), and on one H100:
//   products        275 GFLOP, at the matrix product's 785 TFLOP/s                 0.35 ms
//   exponentials    1.1e9, 16 a clock and SM at 1.7 GHz                            0.30 ms
//   gathers         index_q of every use, 2.1 GB at 5.5 TB/s, as far as L2 has it  0.39 ms
//   instructions    720 issue cycles a warp and 16 uses, a warp per scheduler      0.42 ms
//   uses            queries, slots, visible keys and slots of lse, 0.5 GB          0.15 ms
// Instructions bound it. Predicted: 0.7 ms, 0.5 to 1.1, by four thread blocks on an SM.
#pragma once

#include <cuda.h>

#include "gpu/kernels/index_kl_blocks.h"

namespace msa::cuda {

struct LseTunedArgs {
    KlBlocks blocks;      // Bk 64 or 128; ids, where given, with the slots of uses
    CUtensorMap index_k;  // [Nk, didx] of T, boxes of Bk keys x 64 channels
};

/// As launch_kl_slot_lse.
template <typename T>
cudaError_t launch_kl_slot_lse_sm90(const LseTunedArgs&, int64_t most_items, cudaStream_t);

}  // namespace msa::cuda
