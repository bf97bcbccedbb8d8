// SPDX-License-Identifier: MIT
// Says what goes where: the union of each tile, and the (query, block) pairs that go KV-outer,
// sorted by block.
//
//   split_ids   a warp gathers the ids of a tile in a hash table. Blocks that enough queries share
//               become the tile's union, ascending; the others are counted per chunk and block. The
//               tile takes slots of its chunk.
//   schedule    one thread block per round: which chunks it has, a prefix sum of their counts, and
//               the work items
//   fill_uses   a thread per id puts its pair where its block's pairs are
//
// The order of a block's pairs and that of slots do not matter to any result, so that they may be
// any. That of a union does.
#include <cub/block/block_scan.cuh>

#include "gpu/device/seen_keys.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda {
namespace {

constexpr int kSplitWarps = 2;  // of a thread block

/// A warp's hash table in shared memory: blocks of a tile and which of its queries selected them.
struct SplitTable {
    UnionBlock *entries, *shared;  // [1 << bits], [half of it]
    uint32_t* in_slots;            // [kWarp]
    int bits, bytes;

    /// Bits of a table that `ids` entries fill half at most; a warp's width at least.
    static __host__ __device__ int bits_for(int ids) {
        int bits = 5;
        while (1 << bits < 2 * ids) ++bits;
        return bits;
    }
    __host__ __device__ SplitTable(char* memory, int ids) : bits(bits_for(ids)) {
        entries = reinterpret_cast<UnionBlock*>(memory);
        shared = entries + (1 << bits);
        in_slots = reinterpret_cast<uint32_t*>(shared + (1 << bits) / 2);
        bytes = static_cast<int>(reinterpret_cast<char*>(in_slots + kWarp) - memory);
    }
    /// Bytes of one, on the host.
    static int bytes_for(int ids) {
        char origin[1];
        return SplitTable(origin, ids).bytes;
    }

    /// The entry of a block, made if there is none.
    __device__ UnionBlock& at(int block) {
        for (uint32_t place = static_cast<uint32_t>(block) * 2654435769U >> (32 - bits);;
             place = (place + 1) & ((1U << bits) - 1)) {
            const int before = atomicCAS(&entries[place].block, -1, block);
            if (before == -1 || before == block) return entries[place];
        }
    }
};

__global__ void __launch_bounds__(kSplitWarps* kWarp)
    split_ids(const __grid_constant__ SparseSchedule args) {
    extern __shared__ __align__(16) char memory[];
    const int item = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / kWarp;
    if (item >= args.tile_count * args.groups) return;
    const SparseWorkspace& work = args.workspace;
    const int lane = threadIdx.x % kWarp;
    const int ids = args.tile_queries * args.top_k;
    SplitTable table(memory, ids);
    table = SplitTable(memory + threadIdx.x / kWarp * table.bytes, ids);
    const int bits = table.bits;
    const int tile_index = item / args.groups, group = item % args.groups;
    const int chunk = tile_index / args.chunk_tiles;
    const QueryTile tile = args.tiles[tile_index];
    int32_t* const counts = work.use_counts + chunk * args.lists() +
                            int64_t{group} * args.all_blocks + tile.first_block;
    UnionBlock* const to = work.blocks + int64_t{item} * args.tile_queries * args.top_k;
    const auto for_each_id = [&](auto&& body) {  // body(block, query, position)
        for (int i = lane; i < tile.queries * args.top_k; i += kWarp) {
            const int query = i / args.top_k, at = i % args.top_k;
            const int block =
                args.ids[((tile.query + query) * args.groups + group) * args.top_k + at];
            if (block >= 0) body(block, query, at);
        }
    };
    const auto is_shared = [&](const UnionBlock& entry) {
        return __popc(entry.queries) >= args.least_sharing;
    };

    for (int i = lane; i < 1 << bits; i += kWarp) table.entries[i] = {-1, 0};
    table.in_slots[lane] = 0;
    __syncwarp();
    for_each_id(
        [&](int block, int query, int) { atomicOr(&table.at(block).queries, 1U << query); });
    __syncwarp();
    int count = 0;
    for (int i = lane; i < 1 << bits; i += kWarp) {
        const UnionBlock entry = table.entries[i];
        const bool shared = entry.block >= 0 && is_shared(entry);
        const uint32_t lanes = __ballot_sync(kAllLanes, shared);
        if (shared)
            table.shared[count + __popc(lanes & ((1U << lane) - 1))] = entry;
        else if (entry.block >= 0)
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
    if (args.any_slots())
        for_each_id([&](int block, int query, int at) {
            if (!is_shared(table.at(block))) atomicOr(table.in_slots + query, 1U << at);
        });
    __syncwarp();
    if (lane == 0) work.block_counts[item] = count;
    if (!args.any_slots()) {
        if (item == 0 && lane == 0) *work.rounds = {0, args.chunks(), 0, 0};
        return;
    }
    const uint32_t in_slots = table.in_slots[lane];  // none of queries that are not there
    if (lane < args.tile_queries) work.in_slots[args.row(tile_index, lane, group)] = in_slots;
    const int slots = __reduce_max_sync(kAllLanes, __popc(in_slots));
    if (lane == 0) work.slots[item] = atomicAdd(work.slot_counts + chunk, slots);
}

/// A thread per id.
__global__ void fill_uses(const __grid_constant__ SparseSchedule args) {
    const SparseWorkspace& work = args.workspace;
    const auto i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    const int at = i % args.top_k, row = i / args.top_k, group = row % args.groups;
    const int tile_index = row / args.groups / args.tile_queries;
    const int in_tile = row / args.groups % args.tile_queries;
    if (tile_index >= args.tile_count) return;
    const QueryTile tile = args.tiles[tile_index];
    if (in_tile >= tile.queries) return;
    const uint32_t in_slots = work.in_slots[row];
    if (!((in_slots >> at) & 1)) return;
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
                          seen_keys(args.visible, query) - key,
                          static_cast<int32_t>(tile.key) + key};
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

/// A thread block per round: its chunks, ends of the blocks' uses, and their work items.
constexpr int kScanThreads = 1024;
__global__ void __launch_bounds__(kScanThreads)
    schedule(const __grid_constant__ SparseSchedule args) {
    using Scan = cub::BlockScan<int2, kScanThreads>;
    __shared__ typename Scan::TempStorage storage;
    const SparseWorkspace& work = args.workspace;
    SparseRound round = chunks_of(args, static_cast<int>(blockIdx.x));
    const int32_t* const counts = work.use_counts + round.first_chunk * args.lists();
    int32_t* const ends = work.use_ends + blockIdx.x * args.lists();
    KeyBlockItem* const items = work.items + round.first_chunk * args.most_items();
    const int most = kSparseItemTiles * args.tile_queries;
    const int total = args.groups * args.all_blocks;
    const auto add = [](int2 a, int2 b) { return make_int2(a.x + b.x, a.y + b.y); };
    int2 before{static_cast<int>(round.first_chunk * args.chunk_rows() * args.top_k), 0};
    for (int first = 0; round.chunks > 0 && first < total; first += kScanThreads) {
        const int i = first + static_cast<int>(threadIdx.x);
        int uses = 0;
#pragma unroll 4
        for (int chunk = 0; i < total && chunk < round.chunks; ++chunk)
            uses += counts[chunk * args.lists() + i];
        int2 start{}, sum{};
        Scan(storage).ExclusiveScan(make_int2(uses, (uses + most - 1) / most), start,
                                    make_int2(0, 0), add, sum);
        __syncthreads();
        start = add(start, before);
        before = add(before, sum);
        if (i >= total) continue;
        ends[i] = start.x + uses;
        for (int at = 0; at < uses; at += most)
            items[start.y + at / most] = {i / args.all_blocks, start.x + at, min(most, uses - at),
                                          i % args.all_blocks};
    }
    round.items = before.y;
    if (threadIdx.x == 0) work.rounds[blockIdx.x] = round;
}

}  // namespace

cudaError_t launch_sparse_schedule_sm90(const SparseSchedule& args, cudaStream_t stream) {
    constexpr int kThreads = 128;
    const auto grid = [&](int64_t work, int of_block) {
        return static_cast<unsigned>((work + of_block - 1) / of_block);
    };
    const int64_t items = int64_t{args.tile_count} * args.groups;
    cudaError_t error = cudaMemsetAsync(
        args.workspace.use_counts, 0,
        sizeof(int32_t) * static_cast<size_t>((args.lists() + 1) * args.chunks()), stream);
    if (error != cudaSuccess) return error;
    const int tables = kSplitWarps * SplitTable::bytes_for(args.tile_queries * args.top_k);
    error = cudaFuncSetAttribute(split_ids, cudaFuncAttributeMaxDynamicSharedMemorySize, tables);
    if (error != cudaSuccess) return error;
    split_ids<<<grid(items, kSplitWarps), kSplitWarps * kWarp, static_cast<size_t>(tables),
                stream>>>(args);
    if (args.any_slots()) {
        schedule<<<static_cast<unsigned>(args.chunks()), kScanThreads, 0, stream>>>(args);
        fill_uses<<<grid(items * args.tile_queries * args.top_k, kThreads), kThreads, 0, stream>>>(
            args);
    }
    return cudaGetLastError();
}

}  // namespace msa::cuda
