// SPDX-License-Identifier: MIT
// Splits ids into unions and uses, and sorts the uses by block: count, prefix sum, fill. A warp
// merges the ascending ids of a tile's queries, a lane each. The order of a block's uses does not
// matter to any result, so the fill may be in any order.
#include <cub/block/block_scan.cuh>

#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::gpu {
namespace {

constexpr int kWarp = 32;
constexpr uint32_t kAllLanes = 0xFFFFFFFF;
constexpr int kItemTiles = 32;

template <bool Fill>
__global__ void split_ids(const __grid_constant__ SparseArgs args) {
    const int64_t item = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
    if (item >= int64_t{args.tile_count} * args.groups) return;
    const SparseWorkspace& work = args.workspace;
    const int lane = threadIdx.x % kWarp;
    const QueryTile tile = args.tiles[item / args.groups];
    const int group = static_cast<int>(item % args.groups);
    const int64_t query = tile.query + lane, row = query * args.groups + group;
    const int length = lane < tile.queries ? args.top_k : 0;
    const int64_t first_use = int64_t{group} * args.all_blocks + tile.first_block;
    UnionBlock* const to = work.blocks + item * args.tile_queries() * args.top_k;

    int at = 0, count = 0, slots = 0;
    auto current = [&] {  // the padding, -1, is the largest
        return at < length ? static_cast<uint32_t>(args.ids[row * args.top_k + at]) : UINT32_MAX;
    };
    for (uint32_t mine = current();;) {
        const uint32_t block = __reduce_min_sync(kAllLanes, mine);
        if (block == UINT32_MAX) break;
        const bool owner = mine == block;
        const uint32_t owners = __ballot_sync(kAllLanes, owner);
        if (__popc(owners) >= args.least_sharing) {
            if (!Fill && lane == 0) to[count] = {static_cast<int32_t>(block), owners};
            ++count;
        } else if constexpr (Fill) {
            int end = 0;
            if (lane == 0) end = atomicSub(work.use_ends + first_use + block, __popc(owners));
            end = __shfl_sync(kAllLanes, end, 0);
            if (owner) {
                const int key = static_cast<int>(block) * args.block_size;
                work.uses[end - 1 - __popc(owners >> lane >> 1)] = {
                    static_cast<int32_t>(query), slots, args.visible[query] - key,
                    static_cast<int32_t>(tile.key) + key};
            }
            slots += owner;
        } else {
            if (lane == 0) atomicAdd(work.use_counts + first_use + block, __popc(owners));
            slots += owner;
        }
        if (owner) ++at, mine = current();
    }
    if (Fill) return;
    if (lane == 0) work.block_counts[item] = count;
    if (lane < tile.queries)
        work.slots[(query - args.first_query) * args.groups + group] = slots;
}

/// One thread block: ends of the blocks' uses, and their work items.
constexpr int kScanThreads = 1024;
__global__ void __launch_bounds__(kScanThreads) schedule(const __grid_constant__ SparseArgs args) {
    using Scan = cub::BlockScan<int2, kScanThreads>;
    __shared__ typename Scan::TempStorage storage;
    const SparseWorkspace& work = args.workspace;
    const int most = kItemTiles * args.tile_queries();
    const int total = args.groups * args.all_blocks;
    const auto add = [](int2 a, int2 b) { return make_int2(a.x + b.x, a.y + b.y); };
    int2 before{0, 0};
    for (int first = 0; first < total; first += kScanThreads) {
        const int i = first + static_cast<int>(threadIdx.x);
        const int uses = i < total ? work.use_counts[i] : 0;
        int2 start{}, sum{};
        Scan(storage).ExclusiveScan(make_int2(uses, (uses + most - 1) / most), start,
                                    make_int2(0, 0), add, sum);
        __syncthreads();
        start = add(start, before);
        before = add(before, sum);
        if (i >= total) continue;
        work.use_ends[i] = start.x + uses;
        for (int at = 0; at < uses; at += most)
            work.items[start.y + at / most] = {i / args.all_blocks, start.x + at,
                                               min(most, uses - at), 0};
    }
    if (threadIdx.x == 0) *work.item_count = before.y;
}

}  // namespace

cudaError_t launch_sparse_schedule(const SparseArgs& args, cudaStream_t stream) {
    constexpr int kThreads = 128;
    const int64_t threads = int64_t{args.tile_count} * args.groups * kWarp;
    const auto grid = static_cast<unsigned>((threads + kThreads - 1) / kThreads);
    const size_t bytes = sizeof(int32_t) * static_cast<size_t>(args.groups) *
                         static_cast<size_t>(args.all_blocks);
    const cudaError_t error = cudaMemsetAsync(args.workspace.use_counts, 0, bytes, stream);
    if (error != cudaSuccess) return error;
    split_ids<false><<<grid, kThreads, 0, stream>>>(args);
    if (args.any_slots()) {
        schedule<<<1, kScanThreads, 0, stream>>>(args);
        split_ids<true><<<grid, kThreads, 0, stream>>>(args);
    }
    return cudaGetLastError();
}

}  // namespace msa::gpu
