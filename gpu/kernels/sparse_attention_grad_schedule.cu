// SPDX-License-Identifier: MIT
// Reverse index of ids: the uses of each (group, block), ascending by query, and work items over
// them. Counting sort: a warp counts the ids of a (tile, group); a thread block per chunk turns the
// counts into starts and lists the items; a warp per (tile, group) fills, one query after the
// other, so that the order is fixed. Items go by the tile of their first query: those that run at
// the same time read the same queries, which L2 then holds.
#include <cub/block/block_scan.cuh>

#include "gpu/device/seen_keys.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/kernels/sparse_attention_grad_stages.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = 128, kListThreads = 1024;

/// Of the warp: its (tile, group), or a tile that is not there.
struct TileGroup {
    int tile, group;
    __device__ explicit TileGroup(const SparseGradArgs& args) {
        const int warp = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
        tile = warp / args.groups, group = warp % args.groups;
    }
};

__global__ void __launch_bounds__(kThreads)
    count_uses(const __grid_constant__ SparseGradArgs all, int first_chunk) {
    const int scheduled = static_cast<int>(blockIdx.y);
    const SparseGradArgs args = all.chunk(first_chunk + scheduled, scheduled);
    const TileGroup at(args);
    if (at.tile >= args.tile_count) return;
    const QueryTile tile = args.tiles[at.tile];
    int32_t* const counts = args.workspace.starts + int64_t{at.tile} * args.lists() +
                            int64_t{at.group} * args.all_blocks + tile.first_block;
    for (int i = lane_id(); i < tile.queries * args.top_k; i += kWarp) {
        const int query = i / args.top_k;
        const int id =
            args.ids[((tile.query + query) * args.groups + at.group) * args.top_k + i % args.top_k];
        if (id >= 0) atomicAdd(counts + id, 1);
    }
}

/// Sums as the lists go by.
struct Sums {
    int uses, parts, splits;
    __device__ Sums operator+(const Sums& b) const {
        return {uses + b.uses, parts + b.parts, splits + b.splits};
    }
};

__global__ void __launch_bounds__(kListThreads)
    list_items(const __grid_constant__ SparseGradArgs all, int first_chunk) {
    const int scheduled = static_cast<int>(blockIdx.x);
    const SparseGradArgs args = all.chunk(first_chunk + scheduled, scheduled);
    const GradWorkspace& work = args.workspace;
    using Scan = cub::BlockScan<Sums, kListThreads>;
    using BinScan = cub::BlockScan<int, kListThreads>;
    __shared__ union {
        typename Scan::TempStorage sums;
        typename BinScan::TempStorage bins;
    } storage;
    __shared__ int found;
    if (threadIdx.x == 0) found = 0;
    const int lists = args.lists(), bins = args.groups * args.chunk_tiles;
    Sums before{};
    for (int first = 0; first < lists; first += kListThreads) {
        const int i = first + static_cast<int>(threadIdx.x);
        int uses = 0;
        if (i < lists)
#pragma unroll 8
            for (int t = 0; t < args.tile_count; ++t) uses += work.starts[int64_t{t} * lists + i];
        const int items = args.items_of(uses);
        Sums start{}, sum{};
        __syncthreads();
        Scan(storage.sums)
            .ExclusiveScan(
                Sums{uses, items > 1 ? items : 0, items > 1}, start, Sums{},
                [](Sums a, Sums b) { return a + b; }, sum);
        start = before + start;
        before = before + sum;
        if (i >= lists || uses == 0) continue;
        const int each = args.uses_each(uses), group = i / args.all_blocks;
        const int block = i % args.all_blocks;
        int parts = 0;
        for (int t = 0, done = 0; t < args.tile_count; ++t) {
            int32_t& here = work.starts[int64_t{t} * lists + i];
            const int count = here;
            here = start.uses + done;
            for (; parts * each < done + count; ++parts) {  // an item begins in this tile
                const int order = group * args.chunk_tiles + t;
                work.found[atomicAdd(&found, 1)] = {group,
                                                    block,
                                                    start.uses + parts * each,
                                                    min(each, uses - parts * each),
                                                    items > 1 ? start.parts + parts : -1,
                                                    order,
                                                    {0, 0}};
                atomicAdd(work.bins + order, 1);
            }
            done += count;
        }
        if (items > 1) work.splits[start.splits] = {group, block, start.parts, parts};
    }
    __syncthreads();
    int bins_before = 0;
    for (int first = 0; first < bins; first += kListThreads) {
        const int i = first + static_cast<int>(threadIdx.x);
        int start = 0, sum = 0;
        BinScan(storage.bins).ExclusiveSum(i < bins ? work.bins[i] : 0, start, sum);
        __syncthreads();
        if (i < bins) work.bins[i] = bins_before + start;
        bins_before += sum;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < found; i += kListThreads) {
        const GradItem item = work.found[i];
        work.items[atomicAdd(work.bins + item.order, 1)] = item;
    }
    if (threadIdx.x == 0) work.counts[0] = found, work.counts[1] = before.splits;
}

__global__ void __launch_bounds__(kThreads)
    fill_uses(const __grid_constant__ SparseGradArgs all, int first_chunk) {
    const int scheduled = static_cast<int>(blockIdx.y);
    const SparseGradArgs args = all.chunk(first_chunk + scheduled, scheduled);
    const TileGroup at(args);
    if (at.tile >= args.tile_count) return;
    const QueryTile tile = args.tiles[at.tile];
    const int64_t chunk_query = args.tiles[0].query;
    volatile int32_t* const ends = args.workspace.starts + int64_t{at.tile} * args.lists() +
                                   int64_t{at.group} * args.all_blocks + tile.first_block;
    const int lane = lane_id();
    const auto id_of = [&](int query) {
        return lane < args.top_k && query < tile.queries
                   ? args.ids[((tile.query + query) * args.groups + at.group) * args.top_k + lane]
                   : -1;
    };
    int next = id_of(0);
    for (int i = 0; i < tile.queries; ++i) {
        const int id = next;
        next = id_of(i + 1);
        const int64_t query = tile.query + i;
        if (id >= 0) {  // ids of a query differ: no two lanes meet
            const int place = ends[id];
            ends[id] = place + 1;
            args.workspace.uses[place] = {
                static_cast<int32_t>(query),
                args.slot(static_cast<int>(query - chunk_query), at.group, lane),
                min(seen_keys(args.visible, query) - id * args.block_size, args.block_size), 0};
        }
        __syncwarp();
    }
}

}  // namespace

cudaError_t launch_grad_schedule(const SparseGradArgs& args, int first_chunk, cudaStream_t stream) {
    const int left = args.chunks() - first_chunk;
    const auto chunks = static_cast<size_t>(left < args.batch_chunks ? left : args.batch_chunks);
    const auto tiles = static_cast<size_t>(args.chunk_tiles);
    const GradWorkspace& work = args.workspace;
    const auto clear = [&](int32_t* what, size_t count) {
        return cudaMemsetAsync(what, 0, sizeof(int32_t) * count, stream);
    };
    cudaError_t error = clear(work.starts, chunks * tiles * static_cast<size_t>(args.lists()));
    if (error == cudaSuccess)
        error = clear(work.bins, chunks * tiles * static_cast<size_t>(args.groups));
    if (error == cudaSuccess) error = clear(work.counts, chunks * 4);
    if (error != cudaSuccess) return error;
    const auto blocks =
        static_cast<unsigned>((args.chunk_tiles * args.groups * kWarp + kThreads - 1) / kThreads);
    const dim3 grid(blocks, static_cast<unsigned>(chunks));
    count_uses<<<grid, kThreads, 0, stream>>>(args, first_chunk);
    list_items<<<static_cast<unsigned>(chunks), kListThreads, 0, stream>>>(args, first_chunk);
    fill_uses<<<grid, kThreads, 0, stream>>>(args, first_chunk);
    return cudaGetLastError();
}

}  // namespace msa::cuda
