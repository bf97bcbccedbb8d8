// SPDX-License-Identifier: MIT
// Splits ids into unions and uses, and sorts the uses by block: count, prefix sum, fill. A warp
// merges the ascending ids of a tile's queries, a lane each. The order of a block's uses does not
// matter to any result, so the fill may be in any order.
#include <cub/block/block_scan.cuh>

#include "gpu/device/warp.cuh"
#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda {
namespace {

__global__ void split_ids(const __grid_constant__ SparseArgs args) {
    const int64_t item = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
    if (item >= int64_t{args.tile_count} * args.groups) return;
    const SparseWorkspace& work = args.workspace;
    const int lane = threadIdx.x % kWarp;
    // Group major, so that tiles that run together share keys.
    const auto tile_index = static_cast<int>(item % args.tile_count);
    const auto group = static_cast<int>(item / args.tile_count);
    const QueryTile tile = args.tiles[tile_index];
    const int64_t row = (tile.query + lane) * args.groups + group;
    const int length = lane < tile.queries ? args.top_k : 0;
    int32_t* const counts = work.use_counts + int64_t{group} * args.all_blocks + tile.first_block;
    UnionBlock* const to = work.blocks + item * args.tile_queries() * args.top_k;

    int at = 0, count = 0;
    uint32_t in_slots = 0;
    auto current = [&] {  // the padding, -1, is the largest
        return at < length ? static_cast<uint32_t>(args.ids[row * args.top_k + at]) : UINT32_MAX;
    };
    for (uint32_t mine = current();;) {
        const uint32_t block = __reduce_min_sync(kAllLanes, mine);
        if (block == UINT32_MAX) break;
        const bool owner = mine == block;
        const uint32_t owners = __ballot_sync(kAllLanes, owner);
        const bool shared = __popc(owners) >= args.least_sharing;
        if (lane == 0) {
            if (shared)
                to[count] = {static_cast<int32_t>(block), owners};
            else
                atomicAdd(counts + block, __popc(owners));
        }
        count += shared;
        if (!owner) continue;
        if (!shared) in_slots |= 1U << at;
        ++at;
        mine = current();
    }
    if (lane == 0) work.block_counts[item] = count;
    if (lane < tile.queries) {
        work.in_slots[args.row(tile.query + lane, group)] = in_slots;
        work.marked[args.row(tile.query + lane, group)] = 0;
    }
}

/// A thread per id.
__global__ void fill_uses(const __grid_constant__ SparseArgs args) {
    const SparseWorkspace& work = args.workspace;
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    const int64_t tile_rows = int64_t{args.tile_queries()} * args.groups;
    const int64_t tile_index = i / args.top_k / tile_rows;
    if (tile_index >= args.tile_count) return;
    const QueryTile tile = args.tiles[tile_index];
    const int in_tile = static_cast<int>(i / args.top_k % tile_rows);
    if (in_tile / args.groups >= tile.queries) return;
    const int at = static_cast<int>(i % args.top_k), group = in_tile % args.groups;
    const int64_t query = tile.query + in_tile / args.groups;
    const int64_t row = query * args.groups + group;
    const uint32_t in_slots = work.in_slots[args.row(query, group)];
    if (!((in_slots >> at) & 1)) return;
    const int block = args.ids[row * args.top_k + at], key = block * args.block_size;
    const int end =
        atomicSub(work.use_ends + int64_t{group} * args.all_blocks + tile.first_block + block, 1);
    const int64_t place = args.row(query, group) * args.top_k + __popc(in_slots & ((1U << at) - 1));
    work.uses[end - 1] = {static_cast<int32_t>(query), static_cast<int32_t>(place),
                          seen_keys(args.visible, query) - key,
                          static_cast<int32_t>(tile.key) + key};
}

/// One thread block: ends of the blocks' uses, and their work items.
constexpr int kScanThreads = 1024;
__global__ void __launch_bounds__(kScanThreads) schedule(const __grid_constant__ SparseArgs args) {
    using Scan = cub::BlockScan<int2, kScanThreads>;
    __shared__ typename Scan::TempStorage storage;
    const SparseWorkspace& work = args.workspace;
    const int most = kSparseItemTiles * args.tile_queries();
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
    const auto blocks_of = [](int64_t threads) {
        return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
    };
    const int64_t lists = int64_t{args.tile_count} * args.groups;
    const size_t bytes =
        sizeof(int32_t) * static_cast<size_t>(args.groups) * static_cast<size_t>(args.all_blocks);
    const cudaError_t error = cudaMemsetAsync(args.workspace.use_counts, 0, bytes, stream);
    if (error != cudaSuccess) return error;
    split_ids<<<blocks_of(lists * kWarp), kThreads, 0, stream>>>(args);
    if (args.any_slots()) {
        schedule<<<1, kScanThreads, 0, stream>>>(args);
        fill_uses<<<blocks_of(lists * args.tile_queries() * args.top_k), kThreads, 0, stream>>>(
            args);
    }
    return cudaGetLastError();
}

cudaError_t launch_sparse_attention_sm90(const SparseArgs& args, int processors,
                                         cudaStream_t stream) {
    cudaError_t error = launch_sparse_schedule(args, stream);
    if (error == cudaSuccess && args.any_slots())
        error = launch_sparse_kv_outer_sm90(args, processors, stream);
    return error == cudaSuccess ? launch_sparse_union_sm90(args, processors, stream) : error;
}

}  // namespace msa::cuda
