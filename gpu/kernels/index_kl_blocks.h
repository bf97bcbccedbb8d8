// SPDX-License-Identifier: MIT
// index_kl by blocks of keys, on tensor cores (operands of type T, __nv_bfloat16 or __half): with
// mma.sync here, with wgmma in index_kl_sm90.h. A thread block keeps the keys of a block while the
// queries that use it pass by. It computes the teacher's probabilities p, the index's t, and two
// products of t - p: the block's part of d_index_k, which stays in registers, and each query's part
// of d_index_q, which goes to a slot. Sums over slots and parts have a fixed order.
#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "core/problem.h"
#include "gpu/kernels/reverse_index.h"
#include "gpu/query_tile.h"

namespace msa::cuda {

constexpr int kKlItemUses = 1024;  // most queries of a work item
constexpr int kKlMostKeys = 128;   // of a block

// Work items are taken by group, then by the window of the piece that holds the item's first query,
// longest first.
constexpr int kKlWindows = 16, kKlLengths = 16, kKlBins = kKlWindows * kKlLengths;  // of a group

/// The factor on t - p (at most 1 in magnitude) in its products, and so on d_query and d_keys: f16
/// has no value between 0 and 2^-24. As the sum of two f16 values, t - p is then off by at most
/// 2^-22 of itself or by 2^-40; with bf16, by 2^-16 of itself.
template <typename T>
inline constexpr float kKlUnit = std::is_same_v<T, __half> ? 0x1p15F : 1.0F;

/// A work item: a block of keys of a group, and some of the queries that use it, by position in the
/// reverse index or, without one, by query row.
struct KlItem {
    int64_t begin, end;
    int32_t block, group;  // block: its number through all sequences
};

/// Arguments for a piece of the queries and, on the full support, a round of the blocks. Arrays by
/// query cover the whole problem; workspaces by query begin with the piece.
struct KlBlocks {
    const uint16_t *q, *k;              // [Nq, Hq, dh], [Nk, Hkv, dh]: the bits of T
    const uint16_t *index_q, *index_k;  // [Nq, Hkv, didx], [Nk, didx]
    const float *main_lse, *index_lse;  // [Nq, Hq], [Nq, Hkv], natural log
    const int32_t* ids;                 // [Nq, Hkv, slots]; null: full support
    const KeyRange* visible;            // [Nq]
    const SequenceBlock* blocks;
    ReverseIndex reverse;
    QueryRange piece;
    bool whole;                    // the piece has all queries
    int block_count, first_block;  // blocks of all sequences; the round's first in each
    int slots;                     // k, or the round's blocks
    int heads, groups;             // Hq, Hkv
    int head_dim, index_dim, block_size;
    float scale, index_scale;

    // Workspace.
    KlItem* items;
    int32_t* item_starts;  // [groups * block_count + 1], lists as those of ReverseIndex
    float* d_query;        // [piece, Hkv, slots, didx]
    double* kl;            // [piece, Hkv, slots]; may be absent
    float* slot_lse;       // [piece, Hkv, slots]
    float* d_keys;         // [items, Bk, didx]
    // Of index_kl_sm90 alone, else absent.
    int32_t* order;  // [items] the order in which they are taken
    int32_t* bins;   // [groups, kKlBins]
    int32_t* taken;  // [1] how many are taken so far

    int group_size() const { return heads / groups; }
    __host__ __device__ int lists() const { return groups * block_count; }
};

/// Computes items and item_starts. If order is given, computes it too and sets taken to 0.
cudaError_t launch_kl_items(const KlBlocks&, cudaStream_t);
/// Converts `rows` natural-log lse to KlTunedArgs::lse.
cudaError_t launch_kl_lse(const float* lse, int64_t rows, float* to, cudaStream_t);
/// Computes slot_lse of the index scores, of at most `most_items` items.
template <typename T>
cudaError_t launch_kl_slot_lse(const KlBlocks&, int64_t most_items, cudaStream_t);
/// Computes lse [Nq, Hkv] of the piece's rows; unless `first`, joins it with the stored lse.
cudaError_t launch_kl_join_lse(const KlBlocks&, bool first, float* lse, cudaStream_t);
/// Computes d_query, kl and d_keys.
template <typename T>
cudaError_t launch_kl_blocks(const KlBlocks&, int64_t most_items, cudaStream_t);
/// Shared memory of a thread block of it, by head dim, index dim and G.
template <typename T>
int kl_blocks_shared(int head_dim, int index_dim, int group_size);
/// Sums the slots of the piece's rows: times `gradient` to d_index_q [Nq, Hkv, didx], and to kl
/// [Nq, Hkv] if that is given. Unless `first`, adds to the stored values.
cudaError_t launch_kl_sum_slots(const KlBlocks&, float gradient, bool first, float* d_index_q,
                                double* kl, cudaStream_t);
/// d_index_k [Nk, didx] += gradient * the sums of the blocks' items.
cudaError_t launch_kl_sum_items(const KlBlocks&, float gradient, float* d_index_k, cudaStream_t);

}  // namespace msa::cuda
