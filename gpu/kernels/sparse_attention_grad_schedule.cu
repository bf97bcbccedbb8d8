// SPDX-License-Identifier: MIT
// The reverse index of ids: the uses of each (group, block), ascending by query, and work items
// over them. It is a counting sort:
//   count   some warps count the ids of a (tile, group)
//   starts  a thread block per 32 lists turns the counts into starts, and lists the items
//   fill    a warp per (tile, group) writes the uses, in the order of queries and lanes
// So the order within a list is fixed, but not which memory a list takes. Items are sorted by the
// tile of their first query: items that run at the same time read the same queries, which L2 holds.
#include <cub/block/block_scan.cuh>

#include "gpu/device/seen_keys.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/kernels/sparse_attention_grad_stages.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = 128, kOrderThreads = 1024;
constexpr int kRuns = 16, kListThreads = kRuns * kWarp;  // of tiles
constexpr int kCountWarps = 4;                           // of a (tile, group)

/// Of the warp: its (tile, group), or a tile that is not there; which one of `Warps` it is.
template <int Warps>
struct TileGroup {
    int tile, group, part;
    __device__ explicit TileGroup(const SparseGradArgs& args) {
        const int warp = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
        part = warp % Warps, group = warp / Warps % args.groups, tile = warp / Warps / args.groups;
    }
};

__global__ void __launch_bounds__(kThreads)
    count_uses(const __grid_constant__ SparseGradArgs all, int first_chunk) {
    const int scheduled = static_cast<int>(blockIdx.y);
    const SparseGradArgs args = all.chunk(first_chunk + scheduled, scheduled);
    const TileGroup<kCountWarps> at(args);
    if (at.tile >= args.tile_count) return;
    const QueryTile tile = args.tiles[at.tile];
    int32_t* const counts = args.workspace.starts + int64_t{at.tile} * args.lists() +
                            int64_t{at.group} * args.all_blocks + tile.first_block;
    for (int i = at.part * kWarp + lane_id(); i < tile.queries * args.top_k;
         i += kCountWarps * kWarp) {
        const int query = i / args.top_k;
        const int id =
            args.ids[((tile.query + query) * args.groups + at.group) * args.top_k + i % args.top_k];
        if (id >= 0) atomicAdd(counts + id, 1);
    }
}

/// body(tile, uses) of the list's uses of each tile from `first` on; some are read at once.
template <typename Body>
__device__ void for_tiles(const SparseGradArgs& args, int list, int first, int end, Body body) {
    constexpr int kAtOnce = 8;
    const int lists = args.lists();
    for (int t = first; t < end; t += kAtOnce) {
        int uses[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            uses[i] = t + i < end ? args.workspace.starts[int64_t{t + i} * lists + list] : 0;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i)
            if (t + i < end) body(t + i, uses[i]);
    }
}

/// Where the uses of a list begin, its items as found, its parts, and its split.
struct ListPlace {
    int uses, items, parts, split;
};

/// By a warp, a list a lane: takes a place for `wanted`. Which one is chance, and no result shows
/// it.
__device__ ListPlace take_places(GradCounts& taken, ListPlace wanted) {
    const auto take = [](int32_t& from, int count) {
        int end = count;  // of this lane, within the warp's
        for (int step = 1; step < kWarp; step *= 2) {
            const int other = __shfl_up_sync(kAllLanes, end, step);
            if (lane_id() >= step) end += other;
        }
        int before = 0;
        if (lane_id() == kWarp - 1) before = atomicAdd(&from, end);
        return __shfl_sync(kAllLanes, before, kWarp - 1) + end - count;
    };
    return {take(taken.uses, wanted.uses), take(taken.items, wanted.items),
            take(taken.parts, wanted.parts), take(taken.splits, wanted.split)};
}

/// A thread block per 32 lists of a chunk, a lane per list and a warp per run of tiles: where the
/// uses of each tile go, and the work items as they are found.
__global__ void __launch_bounds__(kListThreads)
    list_items(const __grid_constant__ SparseGradArgs all, int first_chunk) {
    const int scheduled = static_cast<int>(blockIdx.y);
    const SparseGradArgs args = all.chunk(first_chunk + scheduled, scheduled);
    const GradWorkspace& work = args.workspace;
    __shared__ int uses_of_run[kRuns][kWarp];
    __shared__ ListPlace places[kWarp];
    const int lane = lane_id(), run = warp_id(), lists = args.lists();
    const int list = static_cast<int>(blockIdx.x) * kWarp + lane;
    const int run_tiles = (args.tile_count + kRuns - 1) / kRuns;
    const int first = run * run_tiles;
    const int end = list < lists ? min(first + run_tiles, args.tile_count) : 0;
    int of_run = 0;
    for_tiles(args, list, first, end, [&](int, int count) { of_run += count; });
    uses_of_run[run][lane] = of_run;
    __syncthreads();
    int uses = 0, done = 0;  // of the list; before this run
    for (int r = 0; r < kRuns; ++r) {
        if (r == run) done = uses;
        uses += uses_of_run[r][lane];
    }
    const int each = uses > 0 ? args.uses_each(uses) : 1, items = (uses + each - 1) / each;
    const int group = list / args.all_blocks, block = list % args.all_blocks;
    if (run == 0) {
        const ListPlace place =
            take_places(*work.counts, {uses, items, items > 1 ? items : 0, items > 1});
        places[lane] = place;
        if (items > 1) work.splits[place.split] = {group, block, place.parts, items};
    }
    __syncthreads();
    const ListPlace place = places[lane];
    int item = (done + each - 1) / each;  // the first that begins in this run
    for_tiles(args, list, first, end, [&](int t, int count) {
        work.starts[int64_t{t} * lists + list] = place.uses + done;
        done += count;
        for (; item * each < done; ++item) {
            const int order = group * args.chunk_tiles + t;
            work.found[place.items + item] = {group,
                                              block,
                                              place.uses + item * each,
                                              min(each, uses - item * each),
                                              items > 1 ? place.parts + item : -1,
                                              order,
                                              {0, 0}};
            atomicAdd(work.bins + order, 1);
        }
    });
}

/// A thread block per chunk: the items by the tile of their first query.
__global__ void __launch_bounds__(kOrderThreads)
    order_items(const __grid_constant__ SparseGradArgs all, int first_chunk) {
    const int scheduled = static_cast<int>(blockIdx.x);
    const SparseGradArgs args = all.chunk(first_chunk + scheduled, scheduled);
    const GradWorkspace& work = args.workspace;
    using Scan = cub::BlockScan<int, kOrderThreads>;
    __shared__ typename Scan::TempStorage storage;
    const int bins = args.groups * args.chunk_tiles;
    int before = 0;
    for (int first = 0; first < bins; first += kOrderThreads) {
        const int i = first + static_cast<int>(threadIdx.x);
        int start = 0, sum = 0;
        Scan(storage).ExclusiveSum(i < bins ? work.bins[i] : 0, start, sum);
        __syncthreads();
        if (i < bins) work.bins[i] = before + start;
        before += sum;
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < work.counts->items; i += kOrderThreads) {
        const GradItem item = work.found[i];
        work.items[atomicAdd(work.bins + item.order, 1)] = item;
    }
}

__global__ void __launch_bounds__(kThreads)
    fill_uses(const __grid_constant__ SparseGradArgs all, int first_chunk) {
    const int scheduled = static_cast<int>(blockIdx.y);
    const SparseGradArgs args = all.chunk(first_chunk + scheduled, scheduled);
    const TileGroup<1> at(args);
    if (at.tile >= args.tile_count) return;
    const QueryTile tile = args.tiles[at.tile];
    const int64_t chunk_query = args.tiles[0].query;
    volatile int32_t* const ends = args.workspace.starts + int64_t{at.tile} * args.lists() +
                                   int64_t{at.group} * args.all_blocks + tile.first_block;
    const int lane = lane_id(), top_k = args.top_k;
    const int together = kWarp / top_k, mine = lane / top_k, n = lane % top_k;  // queries
    const auto id_of = [&](int first) {
        const int query = first + mine;
        return mine < together && query < tile.queries
                   ? args.ids[((tile.query + query) * args.groups + at.group) * top_k + n]
                   : -1;
    };
    int next = id_of(0);
    for (int first = 0; first < tile.queries; first += together) {
        const int id = next;
        next = id_of(first + together);
        // Lanes of one block, ascending by query: ids of a query differ.
        const uint32_t same = __match_any_sync(kAllLanes, id);
        const int before = __popc(same & ((1U << lane) - 1));
        const int place = id >= 0 ? ends[id] + before : 0;
        __syncwarp();
        if (id >= 0) {
            if (same >> lane == 1) ends[id] = place + 1;
            const int64_t query = tile.query + first + mine;
            args.workspace.uses[place] = {
                static_cast<int32_t>(query),
                args.slot(static_cast<int>(query - chunk_query), at.group, n),
                min(seen_keys(args.visible, query) - id * args.block_size, args.block_size), 0};
        }
        __syncwarp();
    }
}

/// A thread per row.
__global__ void __launch_bounds__(kThreads)
    list_halves(const int32_t* ids, const KeyRange* visible, int64_t rows, int groups, int top_k,
                int half, int32_t* to) {
    const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (row >= rows) return;
    const int seen = seen_keys(visible, row / groups);
    int count = 0;
    const auto add = [&](int id) { to[row * 2 * top_k + count++] = id; };
    for (int n = 0; n < top_k; ++n) {
        const int first = 2 * ids[row * top_k + n];
        if (first < 0) continue;
        add(first);
        if ((first + 1) * half < seen) add(first + 1);
    }
    while (count < 2 * top_k) add(-1);
}

}  // namespace

cudaError_t launch_halves(const int32_t* ids, const KeyRange* visible, int64_t rows, int groups,
                          int top_k, int half, int32_t* to, cudaStream_t stream) {
    const auto blocks = static_cast<unsigned>((rows + kThreads - 1) / kThreads);
    if (blocks > 0)
        list_halves<<<blocks, kThreads, 0, stream>>>(ids, visible, rows, groups, top_k, half, to);
    return cudaGetLastError();
}

cudaError_t launch_grad_schedule(const SparseGradArgs& args, int first_chunk, cudaStream_t stream) {
    const int left = args.chunks() - first_chunk;
    const auto chunks = static_cast<size_t>(left < args.batch_chunks ? left : args.batch_chunks);
    const auto tiles = static_cast<size_t>(args.chunk_tiles);
    const GradWorkspace& work = args.workspace;
    const auto clear = [&](auto* what, size_t count) {
        return cudaMemsetAsync(what, 0, sizeof(*what) * count, stream);
    };
    cudaError_t error = clear(work.starts, chunks * tiles * static_cast<size_t>(args.lists()));
    if (error == cudaSuccess)
        error = clear(work.bins, chunks * tiles * static_cast<size_t>(args.groups));
    if (error == cudaSuccess) error = clear(work.counts, chunks);
    if (error != cudaSuccess) return error;
    const auto grid = [&](int threads, int each) {
        return dim3(static_cast<unsigned>((threads + each - 1) / each),
                    static_cast<unsigned>(chunks));
    };
    const int pair_threads = args.chunk_tiles * args.groups * kWarp;
    count_uses<<<grid(pair_threads * kCountWarps, kThreads), kThreads, 0, stream>>>(args,
                                                                                    first_chunk);
    list_items<<<grid(args.lists(), kWarp), kListThreads, 0, stream>>>(args, first_chunk);
    order_items<<<static_cast<unsigned>(chunks), kOrderThreads, 0, stream>>>(args, first_chunk);
    fill_uses<<<grid(pair_threads, kThreads), kThreads, 0, stream>>>(args, first_chunk);
    return cudaGetLastError();
}

}  // namespace msa::cuda
