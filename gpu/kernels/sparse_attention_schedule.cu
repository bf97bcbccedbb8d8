// SPDX-License-Identifier: MIT
// The schedule of sparse attention: the union of each tile, and the (query, block) pairs that go
// KV-outer, sorted by block.
//
//   clear       the counters of chunks become 0
//   split_ids   a warp gathers the ids of a tile in a hash table. Blocks that enough queries share
//               become the tile's union, ascending; the others are counted per chunk and block. The
//               tile takes slots of its chunk.
//   schedule    one thread block per round: finds the round's chunks, the prefix sum of their
//               counts, and the work items
//   fill_uses   a thread per id writes its pair to the list of its block
//
// The order of a block's pairs and that of slots may vary, since no result depends on them. The
// order of a union is fixed.
#include <cub/block/block_scan.cuh>

#include "gpu/device/early.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda {
namespace {

constexpr int kSplitWarps = 4;  // of a thread block

/// Which ids a warp reads at once: those of `queries` queries of a tile and group, an id a lane.
struct IdPass {
    const SparseSchedule& args;
    QueryTile tile;
    int group, queries, query, at;  // of this lane: which of the queries, and position of its id

    __host__ __device__ static int queries_of(int top_k) { return kWarp / top_k; }
    /// Passes over the ids of a tile.
    __host__ __device__ static int count(int tile_queries, int top_k) {
        return (tile_queries + queries_of(top_k) - 1) / queries_of(top_k);
    }
    __device__ IdPass(const SparseSchedule& call, const QueryTile& of_tile, int of_group)
        : args(call),
          tile(of_tile),
          group(of_group),
          queries(queries_of(args.top_k)),
          query(static_cast<int>(threadIdx.x) % kWarp / args.top_k),
          at(static_cast<int>(threadIdx.x) % kWarp % args.top_k) {}
    /// -1: none.
    __device__ int block(int pass) const {
        const int q = pass * queries + query;
        if (query >= queries || q >= tile.queries) return -1;
        return args.ids[((tile.query + q) * args.groups + group) * args.top_k + at];
    }
};

/// A warp's hash table in shared memory: blocks of a tile and which of its queries selected them.
struct SplitTable {
    static constexpr uint16_t kNowhere = 0xFFFF;
    UnionBlock *entries, *shared;  // [1 << bits], [half of it]
    uint16_t *places, *distinct;   // of each id its entry, [passes, kWarp]; entries in use, as many
    int bits, passes, bytes;

    __host__ __device__ SplitTable(char* memory, int tile_queries, int top_k)
        : bits(5), passes(IdPass::count(tile_queries, top_k)) {
        while (1 << bits < 2 * tile_queries * top_k) ++bits;  // at most half full
        entries = reinterpret_cast<UnionBlock*>(memory);
        shared = entries + (1 << bits);
        places = reinterpret_cast<uint16_t*>(shared + (1 << bits) / 2);
        distinct = places + passes * kWarp;
        bytes = static_cast<int>(reinterpret_cast<char*>(distinct + passes * kWarp) - memory);
    }
    /// Bytes of one, on the host.
    static int bytes_for(int tile_queries, int top_k) {
        char origin[1];
        return SplitTable(origin, tile_queries, top_k).bytes;
    }

    /// Where the entry of a block is; made if there is none, as `made` says.
    __device__ uint16_t place_of(int block, bool& made) {
        for (uint32_t place = static_cast<uint32_t>(block) * 2654435769U >> (32 - bits);;
             place = (place + 1) & ((1U << bits) - 1)) {
            const int before = atomicCAS(&entries[place].block, -1, block);
            made = before == -1;
            if (made || before == block) return static_cast<uint16_t>(place);
        }
    }
    /// By the warp: takes in all ids. How many distinct blocks they are.
    __device__ int fill(const IdPass& ids) {
        constexpr int kAhead = 4;
        const int lane = threadIdx.x % kWarp;
        for (int i = lane; i < 1 << bits; i += kWarp) entries[i] = {-1, 0};
        __syncwarp();
        int count = 0;
        for (int first = 0; first < passes; first += kAhead) {
            int block[kAhead];
#pragma unroll
            for (int n = 0; n < kAhead; ++n) block[n] = ids.block(first + n);
#pragma unroll
            for (int n = 0; n < kAhead; ++n) {
                const int pass = first + n;
                if (pass >= passes) break;
                uint16_t place = kNowhere;
                bool made = false;
                if (block[n] >= 0) {
                    place = place_of(block[n], made);
                    atomicOr(&entries[place].queries, 1U << (pass * ids.queries + ids.query));
                }
                places[pass * kWarp + lane] = place;
                const uint32_t makers = __ballot_sync(kAllLanes, made);
                if (made) distinct[count + __popc(makers & ((1U << lane) - 1))] = place;
                count += __popc(makers);
            }
        }
        __syncwarp();
        return count;
    }
};

/// By a warp: the union of a tile and group, and of the rest which ids go to slots. How many slots
/// it asks for.
__device__ int split_tile(const SparseSchedule& args, SplitTable& table, int item) {
    const SparseWorkspace& work = args.workspace;
    const int lane = threadIdx.x % kWarp;
    const int tile_index = item / args.groups, group = item % args.groups;
    const QueryTile tile = args.tiles[tile_index];
    const IdPass ids(args, tile, group);
    int32_t* const counts = work.use_counts + tile_index / args.chunk_tiles * args.lists() +
                            int64_t{group} * args.all_blocks + tile.first_block;
    UnionBlock* const to = work.blocks + int64_t{item} * args.tile_queries * args.top_k;
    if (lane < tile.queries) args.marked[(tile.query + lane) * args.groups + group] = 0;
    const auto is_shared = [&](const UnionBlock& entry) {
        return __popc(entry.queries) >= args.least_sharing;
    };

    const int distinct = table.fill(ids);
    int count = 0;
    for (int first = 0; first < distinct; first += kWarp) {
        const bool there = first + lane < distinct;
        const UnionBlock entry = table.entries[there ? table.distinct[first + lane] : 0];
        const bool shared = there && is_shared(entry);
        const uint32_t lanes = __ballot_sync(kAllLanes, shared);
        if (shared)
            table.shared[count + __popc(lanes & ((1U << lane) - 1))] = entry;
        else if (there)
            atomicAdd(counts + entry.block, __popc(entry.queries));
        count += __popc(lanes);
    }
    __syncwarp();
    for (int i = lane; i < count; i += kWarp) {
        const UnionBlock mine = table.shared[i];
        int rank = 0;
        for (int j = 0; j < count; ++j) rank += table.shared[j].block < mine.block;
        to[rank] = mine;
    }
    if (lane == 0) work.block_counts[item] = count;
    if (!args.any_slots()) return 0;
    int slots = 0;
    for (int pass = 0; pass < table.passes; ++pass) {
        const uint16_t place = table.places[pass * kWarp + lane];
        const bool apart = place != SplitTable::kNowhere && !is_shared(table.entries[place]);
        const uint32_t lanes = __ballot_sync(kAllLanes, apart);
        const int query = pass * ids.queries + lane;  // a lane for each of the pass
        if (lane >= ids.queries || query >= args.tile_queries) continue;
        const uint32_t mine = (lanes >> (lane * args.top_k)) & (kAllLanes >> (kWarp - args.top_k));
        work.in_slots[args.row(tile_index, query, group)] = mine;
        slots = max(slots, __popc(mine));
    }
    return __reduce_max_sync(kAllLanes, slots);
}

/// A thread per counter: use_counts, and slot_counts behind them.
__global__ void clear(int32_t* counters, int64_t count) {
    wait_for_previous_kernel();
    launch_dependents();
    const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
    if (i < count) counters[i] = 0;
}

__global__ void __launch_bounds__(kSplitWarps* kWarp)
    split_ids(const __grid_constant__ SparseSchedule args) {
    extern __shared__ __align__(16) char memory[];
    __shared__ int asked[kSplitWarps];
    wait_for_previous_kernel();
    launch_dependents();
    const SparseWorkspace& work = args.workspace;
    const int warp = threadIdx.x / kWarp;
    const int first = static_cast<int>(blockIdx.x) * kSplitWarps, item = first + warp;
    const int items = args.tile_count * args.groups;
    SplitTable table(memory, args.tile_queries, args.top_k);
    table = SplitTable(memory + warp * table.bytes, args.tile_queries, args.top_k);
    const int slots = item < items ? split_tile(args, table, item) : 0;
    if (!args.any_slots()) {
        if (item == 0 && threadIdx.x == 0) *work.rounds = {0, args.chunks(), 0, 0};
        return;
    }
    if (threadIdx.x % kWarp == 0) asked[warp] = slots;
    __syncthreads();
    if (threadIdx.x != 0) return;
    // A chunk's slots are asked for together: its counter takes one thread block at a time.
    const auto chunk_of = [&](int n) { return (first + n) / args.groups / args.chunk_tiles; };
    const int there = min(kSplitWarps, items - first);
    for (int begin = 0, end = 0; begin < there; begin = end) {
        int sum = 0;
        for (; end < there && chunk_of(end) == chunk_of(begin); ++end) sum += asked[end];
        int at = atomicAdd(work.slot_counts + chunk_of(begin), sum);
        for (int n = begin; n < end; ++n) {
            work.slots[first + n] = at;
            at += asked[n];
        }
    }
}

/// A thread per id. Few ids may be in slots: what they alone need comes behind the test.
__global__ void fill_uses(const __grid_constant__ SparseSchedule args) {
    wait_for_previous_kernel();
    launch_dependents();
    const SparseWorkspace& work = args.workspace;
    const auto i = static_cast<uint32_t>(blockIdx.x * blockDim.x + threadIdx.x);
    const auto row = static_cast<int>(i / static_cast<uint32_t>(args.top_k));
    const int at = static_cast<int>(i) - row * args.top_k;
    if (row >= args.tile_count * args.tile_queries * args.groups) return;
    const uint32_t in_slots = work.in_slots[row];
    if (!((in_slots >> at) & 1)) return;
    const int group = row % args.groups;
    const int tile_index = row / args.groups / args.tile_queries;
    const int in_tile = row / args.groups % args.tile_queries;
    const QueryTile tile = args.tiles[tile_index];
    const int64_t query = tile.query + in_tile;
    const int block = args.ids[(query * args.groups + group) * args.top_k + at];
    const int key = block * args.block_size;
    const int round = work.places[tile_index / args.chunk_tiles].round;
    const int end = atomicSub(work.use_ends + round * args.lists() +
                                  int64_t{group} * args.all_blocks + tile.first_block + block,
                              1);
    work.uses[end - 1] = {static_cast<int32_t>(query),
                          args.slot_row(tile_index, group, __popc(in_slots & ((1U << at) - 1))) +
                              in_tile * args.group_size(),
                          seen_keys(args.visible, query) - key, args.key_map.first(tile) + key};
}

/// The chunks of a round, by all threads alike; the first tells the chunks where they went.
__device__ SparseRound chunks_of(const SparseSchedule& args, int round) {
    SparseRound found{};
    int64_t slots = 0;
    for (int chunk = 0, at = 0; chunk < args.chunks(); ++chunk) {
        const int more = args.workspace.slot_counts[chunk];
        if (slots + more > args.chunk_slots()) ++at, slots = 0;
        if (at == round) {
            if (found.chunks++ == 0) found.first_chunk = chunk;
            if (threadIdx.x == 0) args.workspace.places[chunk] = {round, static_cast<int>(slots)};
        }
        slots += more;
    }
    return found;
}

/// A thread block per round: its chunks, ends of the blocks' uses, and their work items. A thread
/// takes kScanEach blocks at a time.
constexpr int kScanThreads = 1024, kScanEach = 4;
__global__ void __launch_bounds__(kScanThreads)
    schedule(const __grid_constant__ SparseSchedule args) {
    using Scan = cub::BlockScan<int2, kScanThreads, cub::BLOCK_SCAN_WARP_SCANS>;
    __shared__ typename Scan::TempStorage storage;
    wait_for_previous_kernel();
    launch_dependents();
    const SparseWorkspace& work = args.workspace;
    SparseRound round = chunks_of(args, static_cast<int>(blockIdx.x));
    const int32_t* const counts = work.use_counts + round.first_chunk * args.lists();
    int32_t* const ends = work.use_ends + blockIdx.x * args.lists();
    KeyBlockItem* const items = work.items + round.first_chunk * args.most_items();
    const int most = kSparseItemTiles * args.tile_queries;
    const int total = args.groups * args.all_blocks;
    const auto add = [](int2 a, int2 b) { return make_int2(a.x + b.x, a.y + b.y); };
    const auto of_block = [&](int uses) { return make_int2(uses, (uses + most - 1) / most); };
    int2 before{static_cast<int>(round.first_chunk * args.chunk_rows() * args.top_k), 0};
    for (int first = 0; round.chunks > 0 && first < total; first += kScanThreads * kScanEach) {
        const int mine = first + static_cast<int>(threadIdx.x) * kScanEach;
        int uses[kScanEach] = {};
#pragma unroll 4
        for (int chunk = 0; chunk < round.chunks; ++chunk)
#pragma unroll
            for (int n = 0; n < kScanEach; ++n)
                if (mine + n < total) uses[n] += counts[chunk * args.lists() + mine + n];
        int2 start{}, sum{}, all{};
#pragma unroll
        for (int n = 0; n < kScanEach; ++n) all = add(all, of_block(uses[n]));
        Scan(storage).ExclusiveScan(all, start, make_int2(0, 0), add, sum);
        __syncthreads();
        start = add(start, before);
        before = add(before, sum);
#pragma unroll
        for (int n = 0; n < kScanEach; ++n) {
            const int i = mine + n;
            if (i >= total) break;
            ends[i] = start.x + uses[n];
            for (int at = 0; at < uses[n]; at += most)
                items[start.y + at / most] = {i / args.all_blocks, start.x + at,
                                              min(most, uses[n] - at), i % args.all_blocks};
            start = add(start, of_block(uses[n]));
        }
    }
    round.items = before.y;
    if (threadIdx.x == 0) work.rounds[blockIdx.x] = round;
}

}  // namespace

cudaError_t launch_sparse_schedule(const SparseSchedule& args, bool early, cudaStream_t stream) {
    constexpr int kThreads = 128;
    const auto grid = [&](int64_t work, int of_block) {
        return dim3(static_cast<unsigned>((work + of_block - 1) / of_block));
    };
    const int64_t items = int64_t{args.tile_count} * args.groups;
    const int tables = kSplitWarps * SplitTable::bytes_for(args.tile_queries, args.top_k);
    cudaError_t error =
        cudaFuncSetAttribute(split_ids, cudaFuncAttributeMaxDynamicSharedMemorySize, tables);
    const auto launch = [&](auto* kernel, dim3 blocks, int threads, int bytes, const auto&... to) {
        if (error == cudaSuccess)
            error = launch_early_if(early, kernel, blocks, threads, static_cast<size_t>(bytes),
                                    stream, to...);
    };
    const int64_t counters = (args.lists() + 1) * args.chunks();
    if (args.any_slots())
        launch(clear, grid(counters, kThreads), kThreads, 0, args.workspace.use_counts, counters);
    launch(split_ids, grid(items, kSplitWarps), kSplitWarps * kWarp, tables, args);
    if (args.any_slots()) {
        launch(schedule, dim3(static_cast<unsigned>(args.chunks())), kScanThreads, 0, args);
        launch(fill_uses, grid(items * args.tile_queries * args.top_k, kThreads), kThreads, 0,
               args);
    }
    return error;
}

}  // namespace msa::cuda
