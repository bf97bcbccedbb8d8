// SPDX-License-Identifier: MIT
// The loop over the queries that use a block of keys, tile by tile: one warp loads ahead, the
// others multiply.
#pragma once

#include "gpu/device/exp2.cuh"
#include "gpu/device/kl_uses.cuh"
#include "gpu/device/mma_tile.cuh"

namespace msa::cuda {

constexpr int kWorkers = 8;  // warps that multiply; of the four behind them, the first fetches
constexpr int kWorkThreads = kWorkers * kWarp, kBlockThreads = kWorkThreads + 4 * kWarp;
constexpr int kWorkRegisters = 240, kFetchRegisters = 24;
constexpr int kStepKeys = 16, kStepQueries = 16;  // of a product
constexpr int kMetaBuffers = 3;

/// A barrier of the warps that multiply.
__device__ inline void work_barrier() { barrier_of<1>(kWorkThreads); }
/// A barrier of these and the warp that loads, after each tile.
__device__ inline void tile_barrier() { barrier_of<2>(kWorkThreads + kWarp); }

/// The queries of a tile.
template <int kQueries>
struct TileMeta {
    int64_t query[kQueries];    // -1: none
    int64_t slot[kQueries];     // its number in [piece, Hkv, slots]
    float index_lse[kQueries];  // base 2
    int seen[kQueries];         // keys of the block; 0: none
    int most_seen;
};

/// Called by one warp.
template <int kQueries>
__device__ void fetch_meta(const KlBlocks& a, const KlItem& item, const SequenceBlock& block,
                           int64_t first, TileMeta<kQueries>& to) {
    int most = 0;
    for (int i = lane_id(); i < kQueries; i += kWarp) {
        const int64_t use = first + i;
        int64_t query = -1, slot = 0;
        int seen = 0;
        float lse = 0;
        if (use < item.end) {
            query = query_of_use(a, use);
            seen = seen_of_block(a, block, query);
            const int64_t row = query * a.groups + item.group;
            slot = number_of(a, row, slot_of(a, block, row, use));
            if (a.index_lse != nullptr) lse = a.index_lse[row] * kLog2E;
        }
        to.query[i] = query, to.slot[i] = slot, to.index_lse[i] = lse, to.seen[i] = seen;
        most = max(most, seen);
    }
    for (int step = kWarp / 2; step > 0; step /= 2)
        most = max(most, __shfl_xor_sync(kAllLanes, most, step));
    if (lane_id() == 0) to.most_seen = most;
}

/// Starts the copies of the queries' index rows; called by one warp.
template <int kQueries, int kIndexDim>
__device__ void fetch_index_rows(const KlBlocks& a, int group, const TileMeta<kQueries>& meta,
                                 const MmaTile<kIndexDim>& to) {
    constexpr int kChunks = MmaTile<kIndexDim>::kChunks;
    for (int i = lane_id(); i < kQueries * kChunks; i += kWarp) {
        const int row = i / kChunks, chunk = i % kChunks;
        const int64_t query = max(meta.query[row], int64_t{0});
        copy_chunk(to.chunk(row, chunk),
                   a.index_q + (query * a.groups + group) * kIndexDim + chunk * kChunk,
                   meta.query[row] >= 0);
    }
}

/// The buffer of index rows that tile `tile` uses: tiles alternate between two.
template <int kQueries, int kIndexDim>
__device__ MmaTile<kIndexDim> rows_of_tile(const MmaTile<kIndexDim>& rows, int tile) {
    return {rows.at + tile % 2 * (kQueries * kIndexDim)};
}

/// Starts the copies for the first tile; called by one warp.
template <int kQueries, int kIndexDim>
__device__ void fetch_first(const KlBlocks& a, const KlItem& item, const SequenceBlock& block,
                            int tiles, TileMeta<kQueries>* meta, const MmaTile<kIndexDim>& rows) {
    for (int t = 0; t < min(2, tiles); ++t)
        fetch_meta(a, item, block, item.begin + t * kQueries, meta[t]);
    __syncwarp();
    fetch_index_rows(a, item.group, meta[0], rows);
}

/// Loads for the other tiles; called by one warp. TileMeta is two tiles ahead, index rows are one.
template <int kQueries, int kIndexDim>
__device__ void fetch_tiles(const KlBlocks& a, const KlItem& item, const SequenceBlock& block,
                            int tiles, TileMeta<kQueries>* meta, const MmaTile<kIndexDim>& rows) {
    for (int t = 0; t < tiles; ++t) {
        if (t + 1 < tiles)
            fetch_index_rows(a, item.group, meta[(t + 1) % kMetaBuffers],
                             rows_of_tile<kQueries>(rows, t + 1));
        if (t + 2 < tiles)
            fetch_meta(a, item, block, item.begin + int64_t{t + 2} * kQueries,
                       meta[(t + 2) % kMetaBuffers]);
        wait_for_copies();
        tile_barrier();
    }
}

/// Starts the copies of a block's rows, `stride` values apart; called by the whole thread block.
/// Rows after the last key become zeros.
template <int kWidth>
__device__ void fetch_keys(const uint16_t* from, int64_t stride, int keys, int rows,
                           const MmaTile<kWidth>& to) {
    constexpr int kChunks = MmaTile<kWidth>::kChunks;
    for (int i = static_cast<int>(threadIdx.x); i < rows * kChunks;
         i += static_cast<int>(blockDim.x)) {
        const int row = i / kChunks, chunk = i % kChunks;
        copy_chunk(to.chunk(row, chunk), from + min(row, keys - 1) * stride + chunk * kChunk,
                   row < keys);
    }
}

/// How the warps share the index scores of a tile: 16 keys each. If a block has fewer than 16 keys
/// per warp, the warps with the same keys share the queries.
struct ScoreShare {
    int first_key, part, parts;

    __device__ explicit ScoreShare(int block_size) {
        const int steps = block_size / kStepKeys;
        first_key = warp_id() % steps * kStepKeys;
        part = warp_id() / steps, parts = kWorkers / steps;
    }
};

/// Unscaled scores of the warp's 16 keys and the queries from `first` on. Rows are keys; sums[n]
/// has the 8 columns from 8 n on.
template <typename T, int kIndexDim>
__device__ void index_scores_of(const MmaTile<kIndexDim>& keys, int first_key,
                                const MmaTile<kIndexDim>& rows, int first, float (&sums)[2][4]) {
    const int lane = lane_id();
    for (auto& sum : sums)
        for (float& value : sum) value = 0;
#pragma unroll
    for (int step = 0; step < MmaTile<kIndexDim>::kSteps; ++step) {
        const uint4 low = keys.words_of(first_key + lane / 4, step);
        const uint4 high = keys.words_of(first_key + 8 + lane / 4, step);
#pragma unroll
        for (int n = 0; n < 2; ++n)
            multiply_words<T>(sums[n], low, high, rows.words_of(first + 8 * n + lane / 4, step));
    }
}

/// Key and query of element e of sums[n] above.
__device__ inline int key_of(int first_key, int e) {
    return first_key + lane_id() / 4 + 8 * (e / 2);
}
__device__ inline int query_of(int first, int n, int e) {
    return first + 8 * n + 2 * (lane_id() % 4) + e % 2;
}

template <typename Kernel>
cudaError_t launch_items(Kernel* kernel, int bytes, const KlBlocks& a, int64_t most_items,
                         cudaStream_t stream) {
    if (most_items == 0) return cudaSuccess;
    const cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (status != cudaSuccess) return status;
    kernel<<<static_cast<unsigned>(most_items), kBlockThreads, static_cast<size_t>(bytes),
             stream>>>(a);
    return cudaGetLastError();
}

}  // namespace msa::cuda
