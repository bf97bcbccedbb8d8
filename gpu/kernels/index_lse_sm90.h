// SPDX-License-Identifier: MIT
// The lse of the index scores by blocks on Hopper: launch_kl_slot_lse of index_kl_blocks.h with
// wgmma.
// What bounds it, predicted and measured: docs/kernels.md, "index_lse_sm90".
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
