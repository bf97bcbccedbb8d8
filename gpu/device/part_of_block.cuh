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

/// The n-th block of kSparseWideStepKeys of those at `blocks`: with 256 channels a block of 128 is
/// two of these, for all that walks a union.
__device__ inline UnionBlock half_block(const SparseUnionArgs& args, const UnionBlock* blocks,
                                        int n) {
    const int parts = args.block_size / kSparseWideStepKeys;
    const UnionBlock whole = blocks[n / parts];
    return {whole.block * parts + n % parts, whole.queries};
}
/// How many blocks the steps take of `count` at `blocks`. A half of the last one that nobody sees
/// is not among them: so the last step is the only one that reaches behind a sequence's end.
template <int Dim, int BlockSize>
__device__ int step_blocks(const SparseUnionArgs& args, const QueryTile& tile,
                           const UnionBlock* blocks, int count) {
    if constexpr (Dim < 256) return count;
    const int parts = args.block_size / BlockSize;
    if (parts == 1 || count == 0) return count;
    const int seen = min(tile.most_visible, args.key_map.keys_of(tile.sequence));
    const int second = blocks[count - 1].block * args.block_size + BlockSize;
    return count * parts - (second < seen ? 0 : 1);
}

}  // namespace msa::cuda
