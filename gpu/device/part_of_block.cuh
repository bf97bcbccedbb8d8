// SPDX-License-Identifier: MIT
#pragma once

#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda {

/// Blocks of a row of ids, cut into parts of Keys keys which are numbered like blocks of that size:
/// the `slot`-th of the row, or -1.
template <int Keys>
__device__ int part_of_block(const SparseCall& args, int64_t row, int slot) {
    const int parts = args.block_size / Keys;
    if (slot >= args.top_k * parts) return -1;
    const int id = __ldcg(args.ids + row * args.top_k + slot / parts);
    return id < 0 ? -1 : id * parts + slot % parts;
}

}  // namespace msa::cuda
