// SPDX-License-Identifier: MIT
// A tile of 128 rows walks the union of its blocks, adds the slots that KV-outer wrote for its
// rows, and writes the result, with mma.sync and cp.async. It does what
// sparse_attention_union_sm90.cu does, on any device of compute capability 8.0 or later.
//
// One warp copies: keys and values of the union's blocks stream through a ring buffer in shared
// memory, up to 64 keys per stage. Eight warps multiply independently. Each holds 16 rows of the
// tile in registers, with their outputs and softmax, and skips a stage that none of its rows
// selected. With 16 heads per group a warp's rows are one query's, so it multiplies only blocks
// that this query selected.
//
// With 256 channels eight warps need all registers. So they copy themselves, step by step, 32 keys
// per stage.
//
// Thread blocks are persistent. The copying warp takes tiles from a counter, because unions differ
// in length, and runs ahead into the next tile.
#include <algorithm>

#include "gpu/device/by_sizes.cuh"
#include "gpu/device/ring.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/device/union_rows_sm80.cuh"
#include "gpu/kernels/kernel_elements.h"
#include "gpu/kernels/sparse_attention_sm80.h"

namespace msa::cuda {
namespace {

constexpr int kWarps = kUnionWarps, kThreads = (kWarps + 1) * kWarp;
constexpr int kTasks = 2, kNoTask = -1;

template <typename T, int Dim, int BlockSize>
struct Shared {
    static constexpr int kBlockSize = BlockSize;
    static constexpr int kKeys = BlockSize < 64 ? BlockSize : 64;  // of a stage
    static constexpr int kParts = BlockSize / kKeys;               // stages of a block
    static constexpr int kStages = kIsE4m3<T> ? 5 : BlockSize == 32 ? 4 : 3;
    using Tiles = LaneTiles<T, Dim, kKeys>;
    uint16_t k[kStages][Tiles::kKeyBytes / 2], v[kStages][Tiles::kValueBytes / 2];
    UnionBlock blocks[kStages];  // `block`: the stage's first key
    // Of e4m3: of the stages' blocks, and of each thread's rows, for whom registers do not suffice.
    BlockScales scales[kIsE4m3<T> ? kStages : 1];
    RowScales<T> row_scales[kIsE4m3<T> ? kWarps * kWarp : 1];
    UnionTask tasks[kTasks];
    ArrivalBarrier full[kStages], empty[kStages], task_full[kTasks], task_empty[kTasks];

    /// By one thread, before a barrier of the block.
    __device__ void init() {
        for (int s = 0; s < kStages; ++s) full[s].init(kWarp + 1), empty[s].init(kWarps);
        for (int s = 0; s < kTasks; ++s) task_full[s].init(1), task_empty[s].init(kWarps);
    }
};

/// Starts copies of a stage's values, from key `first` of a block on. `block`: the transposed
/// values.
template <int Dim, int BlockSize, int Keys>
__device__ void warp_copy_transposed(uint16_t* to, const char* block, int first) {
    const int lane = lane_id(), channel = lane / 4, chunk = lane % 4;
    static_assert(Keys == 64);  // a channel's are 4 chunks
    char* const tile = reinterpret_cast<char*>(to) + swizzled_chunk(channel, chunk, Keys);
    block += swizzled_chunk(channel, first / 16 + chunk, BlockSize);
#pragma unroll
    for (int n = 0; n < Dim; n += 8) copy_chunk(tile + n * Keys, block + n * BlockSize, true);
}

/// Of a (block, group) pair, over all sequences.
__device__ int64_t block_number(const SparseTilesArgs& args, const QueryTile& tile, int block,
                                int group) {
    return int64_t{tile.first_block + block} * args.groups + group;
}

/// Starts copies of the keys and values of a stage, from the sequence's key `key` on.
template <typename T, int Dim, typename Memory>
__device__ __forceinline__ void copy_stage(const SparseTilesArgs& args, Memory& shared, int stage,
                                           const QueryTile& tile, int group, int key) {
    constexpr int kKeys = Memory::kKeys, kBlockSize = Memory::kBlockSize;
    constexpr int kWidth = kRowWidth<T, Dim>;
    const int64_t stride = int64_t{args.groups} * kWidth;
    const int there = tile.most_visible - key;
    const int64_t from = (tile.key + (there > 0 ? key : 0)) * stride + group * kWidth;
    warp_copy_rows<kWidth, kKeys, kTileWidth<T, Dim>>(
        shared.k[stage], static_cast<const uint16_t*>(args.k) + from, stride, there);
    if constexpr (kIsE4m3<T>)
        warp_copy_transposed<Dim, kBlockSize, kKeys>(
            shared.v[stage],
            args.values + block_number(args, tile, key / kBlockSize, group) *
                              transposed_tile_bytes(Dim, kBlockSize),
            key % kBlockSize);
    else
        warp_copy_rows<Dim, kKeys>(shared.v[stage], static_cast<const uint16_t*>(args.v) + from,
                                   stride, there);
}

/// The warp that copies.
template <typename T, int Dim, typename Memory>
__device__ __forceinline__ void produce(const SparseTilesArgs& args, Memory& shared) {
    constexpr int kKeys = Memory::kKeys, kParts = Memory::kParts, kBlockSize = Memory::kBlockSize;
    const SparseWorkspace& work = args.workspace;
    const RoundTiles tiles(args);
    const int lane = lane_id();
    RingPlace<Memory::kStages> at;
    RingPlace<kTasks> task_at;
    for (int index = static_cast<int>(blockIdx.x);; task_at.advance()) {
        const bool any = index < tiles.count * args.groups;
        const int tile_index = any ? tiles.tile(index) : 0, group = any ? tiles.group(index) : 0;
        const QueryTile tile = args.tiles[tile_index];
        const int item = tile_index * args.groups + group;
        const int count = any ? work.block_counts[item] : 0;
        const int visible =
            any && lane < tile.queries ? seen_keys(args.visible, tile.query + lane) : 0;
        shared.task_empty[task_at.stage].wait(task_at.parity ^ 1);
        UnionTask& task = shared.tasks[task_at.stage];
        task.visible[lane] = visible;
        if (lane == 0)
            task.tile = tile_index, task.group = group, task.steps = any ? count * kParts : kNoTask;
        __syncwarp();
        if (lane == 0) shared.task_full[task_at.stage].arrive();
        if (!any) return;
        int next = 0;
        if (lane == 0)
            next = static_cast<int>(gridDim.x) + atomicAdd(&work.rounds[args.round].taken, 1);
        const UnionBlock* const blocks =
            work.blocks + int64_t{item} * args.tile_queries * args.top_k;
        UnionBlock ahead{};  // of 32 blocks, one a lane
        [[maybe_unused]] BlockScales scales_ahead{};
        for (int n = 0; n < count; ++n) {
            if (n % kWarp == 0 && n + lane < count) {
                ahead = blocks[n + lane];
                if constexpr (kIsE4m3<T>)
                    scales_ahead =
                        block_scales_at(args.scales, block_number(args, tile, ahead.block, group));
            }
            const UnionBlock block{__shfl_sync(kAllLanes, ahead.block, n % kWarp),
                                   __shfl_sync(kAllLanes, ahead.queries, n % kWarp)};
            for (int part = 0; part < kParts; ++part, at.advance()) {
                const int key = block.block * kBlockSize + part * kKeys;
                shared.empty[at.stage].wait(at.parity ^ 1);
                copy_stage<T, Dim>(args, shared, at.stage, tile, group, key);
                if constexpr (kIsE4m3<T>) {
                    if (lane == n % kWarp) shared.scales[at.stage] = scales_ahead;
                    __syncwarp();
                }
                ArrivalBarrier& full = shared.full[at.stage];
                full.arrive_with_copies();
                if (lane == 0) {
                    shared.blocks[at.stage] = {key, block.queries};
                    full.arrive();
                }
            }
        }
        index = __shfl_sync(kAllLanes, next, 0);
    }
}

template <typename T, int Dim, int BlockSize>
__global__ void __launch_bounds__(kThreads, 1)
    union_attention(const __grid_constant__ SparseTilesArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using Memory = Shared<T, Dim, BlockSize>;
    auto& shared = *reinterpret_cast<Memory*>(memory);
    constexpr int kKeys = Memory::kKeys;
    if (threadIdx.x == 0) shared.init();
    __syncthreads();
    if (warp_id() == kWarps) return produce<T, Dim>(args, shared);

    const int row = warp_id() * 16 + lane_id() / 4;
    // Of the thread's two rows; of an empty row any, its results go nowhere.
    const auto query_at = [&](int r) { return min(r / args.group_size(), kSparseTileQueries - 1); };
    const int queries = query_at(row) | query_at(row + 8) << 8;
    const auto query_of = [&](int side) { return queries >> 8 * side & 0xFF; };
    const typename Memory::Tiles tiles(shared.k[0], shared.v[0]);
    RingPlace<Memory::kStages> at;
    RingPlace<kTasks> task_at;
    for (;; task_at.advance()) {
        shared.task_full[task_at.stage].wait(task_at.parity);
        const UnionTask& task = shared.tasks[task_at.stage];
        if (task.steps == kNoTask) return;
        WordRows<kRowWidth<T, Dim>, 1> q;
        const RowScales<T> loaded = load_queries<T>(args, task, q);
        if constexpr (kIsE4m3<T>) shared.row_scales[opaque_thread()] = loaded;
        const auto row_scales =
            [&]() -> std::conditional_t<kIsE4m3<T>, const RowScales<T>&, RowScales<T>> {
            if constexpr (kIsE4m3<T>)
                return shared.row_scales[opaque_thread()];
            else
                return loaded;
        };
        float out[1][Dim / 2] = {};
        RunningSoftmax<T> softmax;
        for (int left = task.steps; left > 0; --left, at.advance()) {
            shared.full[at.stage].wait(at.parity);
            const UnionBlock block = shared.blocks[at.stage];
            int seen[2];
#pragma unroll
            for (int side = 0; side < 2; ++side)
                seen[side] = (block.queries >> query_of(side)) & 1
                                 ? task.visible[query_of(side)] - block.block
                                 : 0;
            if (__any_sync(kAllLanes, seen[0] > 0 || seen[1] > 0)) {
                attend<T, Dim, kKeys>(out, softmax, q, tiles, at.stage, 0, seen, row_scales(),
                                      shared.scales[kIsE4m3<T> ? at.stage : 0], false);
            }
            __syncwarp();  // all lanes have read the stage
            if (opaque_thread() % kWarp == 0) shared.empty[at.stage].arrive();
        }

        finish_rows<T, Dim>(args, shared.tasks[task_at.stage], out[0], softmax);
        __syncwarp();  // all lanes have read the task
        if (lane_id() == 0) shared.task_empty[task_at.stage].arrive();
    }
}

constexpr int kWideThreads = kWarps * kWarp;

template <typename T, int Dim>
struct WideShared {
    static constexpr int kKeys = 32, kStages = 3;
    using Tiles = LaneTiles<T, Dim, kKeys>;
    uint16_t k[kStages][Tiles::kKeyBytes / 2], v[kStages][Tiles::kValueBytes / 2];
    UnionBlock blocks[kStages];  // `block`: the stage's first key
    UnionTask task;
    int next;
};

/// union_attention() without a warp that copies.
template <typename T, int Dim, int BlockSize>
__global__ void __launch_bounds__(kWideThreads, 1)
    union_attention_wide(const __grid_constant__ SparseTilesArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using Memory = WideShared<T, Dim>;
    auto& shared = *reinterpret_cast<Memory*>(memory);
    constexpr int kKeys = Memory::kKeys, kStages = Memory::kStages, kParts = BlockSize / kKeys;
    const SparseWorkspace& work = args.workspace;
    const RoundTiles tiles(args);
    const typename Memory::Tiles lane_tiles(shared.k[0], shared.v[0]);
    const int64_t stride = int64_t{args.groups} * Dim;
    for (int index = static_cast<int>(blockIdx.x); index < tiles.count * args.groups;) {
        const int tile_index = tiles.tile(index), group = tiles.group(index);
        const int item = tile_index * args.groups + group;
        const QueryTile tile = args.tiles[tile_index];
        const int steps = work.block_counts[item] * kParts;
        const UnionBlock* const blocks =
            work.blocks + int64_t{item} * args.tile_queries * args.top_k;
        const auto fetch = [&](int n) {
            if (n < steps) {
                UnionBlock block = blocks[n / kParts];
                block.block = block.block * BlockSize + n % kParts * kKeys;
                const int stage = n % kStages, there = tile.most_visible - block.block;
                const int64_t from =
                    (tile.key + (there > 0 ? block.block : 0)) * stride + group * Dim;
                copy_rows<Dim, kKeys, kWideThreads>(
                    shared.k[stage], static_cast<const uint16_t*>(args.k) + from, stride, there);
                copy_rows<Dim, kKeys, kWideThreads>(
                    shared.v[stage], static_cast<const uint16_t*>(args.v) + from, stride, there);
                if (threadIdx.x == 0) shared.blocks[stage] = block;
            }
            commit_copies();
        };
        __syncthreads();  // all warps are done with the last tile
        for (int n = 0; n < kStages - 1; ++n) fetch(n);
        if (warp_id() == 0)
            shared.task.visible[lane_id()] =
                lane_id() < tile.queries ? seen_keys(args.visible, tile.query + lane_id()) : 0;
        if (threadIdx.x == 0) {
            shared.task.tile = tile_index, shared.task.group = group;
            shared.next =
                static_cast<int>(gridDim.x) + atomicAdd(&work.rounds[args.round].taken, 1);
        }
        __syncthreads();
        WordRows<Dim, 1> q;
        const RowScales<T> scales = load_queries<T>(args, shared.task, q);
        float out[1][Dim / 2] = {};
        RunningSoftmax<T> softmax;
        for (int n = 0; n < steps; ++n) {
            wait_for_groups<kStages - 2>();
            __syncthreads();
            fetch(n + kStages - 1);
            const UnionBlock block = shared.blocks[n % kStages];
            int seen[2];
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const int row = opaque_thread() / kWarp * 16 + opaque_thread() % kWarp / 4;
                const int query = min((row + 8 * side) / args.group_size(), kSparseTileQueries - 1);
                seen[side] =
                    (block.queries >> query) & 1 ? shared.task.visible[query] - block.block : 0;
            }
            if (__any_sync(kAllLanes, seen[0] > 0 || seen[1] > 0))
                attend<T, Dim, kKeys>(out, softmax, q, lane_tiles, n % kStages, 0, seen, scales, {},
                                      false);
        }
        finish_rows<T, Dim>(args, shared.task, out[0], softmax);
        index = shared.next;
    }
}

template <typename T, int Dim, int BlockSize>
cudaError_t launch(const SparseTilesArgs& args, int sms, cudaStream_t stream) {
    constexpr bool kWide = Dim == 256;
    constexpr int kBytes =
        sizeof(std::conditional_t<kWide, WideShared<T, Dim>, Shared<T, Dim, BlockSize>>);
    constexpr int kOfBlock = kWide ? kWideThreads : kThreads;
    static_assert(kBytes <= 99 << 10);
    const auto kernel = [] {
        if constexpr (kWide)
            return union_attention_wide<T, Dim, BlockSize>;
        else
            return union_attention<T, Dim, BlockSize>;
    }();
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    int blocks = 0;  // on an SM
    const cudaError_t asked =
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kOfBlock, kBytes);
    if (asked != cudaSuccess) return asked;
    const int64_t items = int64_t{args.tile_count} * args.groups;
    kernel<<<static_cast<unsigned>(std::min<int64_t>(items, int64_t{blocks} * sms)), kOfBlock,
             kBytes, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace

template <typename T>
cudaError_t launch_sparse_union_sm80(const SparseTilesArgs& args, int sms, cudaStream_t stream) {
    return by_head_sizes<T>(args.head_dim, args.block_size, [&]<int Dim, int BlockSize>() {
        return launch<T, Dim, BlockSize>(args, sms, stream);
    });
}

#define MSA_INSTANTIATE(T) \
    template cudaError_t launch_sparse_union_sm80<T>(const SparseTilesArgs&, int, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
