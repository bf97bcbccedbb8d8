// SPDX-License-Identifier: MIT
// Gradient of sparse_attention (eq:msa-sparse-attn) on Hopper, KV-outer: a key block gathers the
// queries that selected it and computes all five products once. d_k and d_v accumulate in
// registers. d_q is a sum over the query's blocks: each (query, block) pair writes its part to a
// slot, and a second kernel adds a query's slots. There are no float atomics, so the same call
// gives bitwise the same results. Operands, P, dS and slots have type T, __nv_bfloat16 or __half.
//
// Stages: prepare (delta); the schedule of some chunks of queries; for each chunk the products,
// overlapped with adding the previous chunk's slots, and the sums of blocks that were split over
// work items; finally the last slots, and rounding of d_k and d_v from their float accumulators.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "core/kernel_sizes.h"
#include "gpu/kernels/sparse_attention_grad_workspace.h"
#include "gpu/query_tile.h"

namespace msa::cuda {

struct SparseGradArgs {
    const void *q, *out, *d_out;   // [Nq, Hq, dh] of T
    const void *all_k, *all_v;     // [Nk, Hkv, dh] of T
    const float* lse;              // [Nq, Hq]
    CUtensorMap q_one, d_out_one;  // [Nq, Hq, dh] of T, boxes of one query's G heads x 64 channels
    CUtensorMap k, v;              // [Nk, Hkv * dh] of T, boxes of a tile x 64 channels
    const int32_t* ids;            // [Nq, Hkv, top_k]
    const QueryTile* tiles;        // all, at most kGradTileQueries queries each
    int tile_count, chunk_tiles, batch_chunks;  // of all; of a chunk; chunks scheduled at once
    const KeyRange* visible;                    // [Nq]
    const SequenceBlock* key_blocks;            // [all_blocks]
    int64_t queries, keys;                      // of the call
    int query_heads, groups, head_dim, block_size, top_k;  // k <= 32
    float scale;                                           // on q . k, above 0
    int all_blocks, item_uses;  // blocks of all sequences; queries of a work item, about
    GradWorkspace workspace;
    void *d_q, *d_k, *d_v;  // T, or float if requested
    bool d_q_is_float, d_k_is_float, d_v_is_float;
    // [Nq, Hkv] for d_q and [all_blocks, Hkv] for d_k and d_v, initially 0. Set to 1 if the
    // gradient has a NaN or, in f16, an infinite value.
    int32_t *marked_rows, *marked_blocks;

    // Set by derive() from the sizes, so that kernels need no divisions.
    int group_size;    // G
    int step_queries;  // queries of a step
    int row_factor;    // ceil(2^16 / G)

    void derive() {
        group_size = query_heads / groups;
        step_queries = static_cast<int>(sparse_grad_step_queries(group_size));
        row_factor = (0xFFFF + group_size) / group_size;
    }
    /// row / G, of a row of a step.
    __device__ int query_of_row(int row) const { return row * row_factor >> 16; }
    __host__ __device__ int lists() const { return groups * all_blocks; }
    __host__ __device__ int chunks() const { return (tile_count + chunk_tiles - 1) / chunk_tiles; }
    __host__ __device__ int64_t most_uses() const {
        return int64_t{chunk_tiles} * kGradTileQueries * groups * top_k;
    }
    __host__ __device__ int64_t most_items() const { return lists() + most_parts(); }
    __host__ __device__ int64_t most_parts() const { return most_uses() * 4 / 3 / item_uses + 1; }
    __host__ __device__ int64_t most_splits() const { return most_uses() / item_uses + 1; }
    /// Work items for a block with `uses` uses.
    __host__ __device__ int items_of(int uses) const {
        const int rounded = (uses + item_uses / 2) / item_uses;
        return uses == 0 ? 0 : rounded > 1 ? rounded : 1;
    }
    __host__ __device__ int uses_each(int uses) const {
        const int items = items_of(uses), step = step_queries;
        return ((uses + items - 1) / items + step - 1) / step * step;
    }
    __host__ __device__ int slot(int query_of_chunk, int group, int n) const {
        return (query_of_chunk * groups + group) * top_k + n;
    }
    /// Two buffers, since the previous chunk's slots are added while a chunk's products fill its
    /// own.
    __host__ __device__ int slot_buffers() const { return chunks() > 1 ? 2 : 1; }
    __host__ __device__ int64_t slot_bytes() const {
        return most_uses() * group_size * head_dim * 2;
    }
    const void* full_slots;  // the slots of the previous chunk; null for the first
    /// The arguments of one chunk; `scheduled` is its index among those scheduled at once.
    __host__ __device__ SparseGradArgs chunk(int index, int scheduled) const {
        SparseGradArgs one = *this;
        const auto buffer = [&](int n) {
            return static_cast<char*>(workspace.slots) + n % 2 * slot_bytes();
        };
        one.workspace.slots = buffer(index);
        one.full_slots = index > 0 ? buffer(index - 1) : nullptr;
        one.tiles += int64_t{index} * chunk_tiles;
        const int left = tile_count - index * chunk_tiles;
        one.tile_count = left < chunk_tiles ? left : chunk_tiles;
        GradWorkspace& work = one.workspace;
        work.starts += int64_t{scheduled} * chunk_tiles * lists();
        work.bins += int64_t{scheduled} * groups * chunk_tiles;
        work.uses += scheduled * most_uses();
        work.found += scheduled * most_items();
        work.items += scheduled * most_items();
        work.counts += scheduled;
        work.splits += scheduled * most_splits();
        return one;
    }
};

template <typename T>
cudaError_t launch_sparse_attention_grad_sm90(const SparseGradArgs&, int sms, cudaStream_t);

}  // namespace msa::cuda
