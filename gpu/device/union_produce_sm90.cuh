// SPDX-License-Identifier: MIT
// The producer warp of a team of gpu/kernels/sparse_attention_union_sm90.cu.
#pragma once

#include "gpu/device/part_of_block.cuh"
#include "gpu/device/union_memory_sm90.cuh"
#include "gpu/device/union_tiles_sm90.cuh"

namespace msa::cuda::sm90 {

/// Called by one lane: copies the queries of a tile, and fills the task at this stage, except for
/// the arrays that all lanes fill.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void fetch_queries(const SparseUnionArgs& args,
                              UnionMemory<T, Dim, BlockSize, Kind>& shared, int stage,
                              const QueryTile& tile, int group, int part_row, int steps) {
    using S = typename UnionMemory<T, Dim, BlockSize, Kind>::S;
    Task& task = shared.tasks[stage];
    Barrier& full = shared.q_ring.full[stage];
    task.query = tile.query;
    task.queries = tile.queries;
    task.group = group;
    task.part_row = part_row;
    task.steps = steps;
    task.keys = args.key_map.keys_of(tile.sequence);
    const uint32_t bytes = static_cast<uint32_t>(args.tile_rows() * S::kBoxes * kSwizzle);
    full.expect(steps > 0 ? bytes : 0);
    for (int box = 0; steps > 0 && box < S::kBoxes; ++box)
        copy_box(shared.q[stage] + box * S::kQueryBox, &args.q, 64 * box, group * args.group_size(),
                 static_cast<int>(tile.query), &full);
}

/// Called by one lane for each block of a step: copies its keys, or its values, that lie `at`.
template <typename S, int BlockSize>
__device__ void copy_block(char* to, const CUtensorMap* map, const KeyMap& keys, int group,
                           const TileRowsAt& at, Barrier& full) {
    copy_keys<S::kBoxes, S::kKeyBox>(to + threadIdx.x % kWarp * (BlockSize * kSwizzle), map, keys,
                                     at, group, full);
}

/// Called by the warp, whose first lanes have the blocks of a step: copies their keys.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void fetch_keys(const SparseUnionArgs& args,
                           UnionMemory<T, Dim, BlockSize, Kind>& shared, int stage, int group,
                           const TileRowsAt& at, const UnionBlock& block,
                           const BlockScales& scales) {
    using Memory = UnionMemory<T, Dim, BlockSize, Kind>;
    using S = typename Memory::S;
    const int lane = threadIdx.x % kWarp;
    Barrier& full = shared.k_ring.full[stage];
    if (lane < Memory::kBlocks) shared.blocks[stage][lane] = block;
    if (lane == 0) shared.scales.put_block(scales, stage);
    __syncwarp();
    if (lane == 0) full.expect(S::kKeyBytes);
    if (lane < Memory::kBlocks)
        copy_block<S, BlockSize>(shared.k[stage], &args.k, args.key_map, group, at, full);
}

/// Copies their values. `number`: index of the (block, group) pair over all sequences (e4m3).
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void fetch_values(const SparseUnionArgs& args,
                             UnionMemory<T, Dim, BlockSize, Kind>& shared, int stage, int group,
                             const TileRowsAt& at, int64_t number) {
    using Memory = UnionMemory<T, Dim, BlockSize, Kind>;
    using S = typename Memory::S;
    const int lane = threadIdx.x % kWarp;
    Barrier& full = shared.v_ring.full[stage];
    if (lane == 0) full.expect(S::kValueBytes);
    if (lane >= Memory::kBlocks) return;
    if constexpr (kIsE4m3<T>)
        copy_bytes(shared.v[stage], args.values + number * S::kValueBytes, S::kValueBytes, &full,
                   Keep::normal);
    else
        copy_block<S, BlockSize>(shared.v[stage], &args.v, args.key_map, group, at, full);
}

/// Called by the warp: hands over a task with its queries, once its place is free.
template <typename T, int Dim, int BlockSize, Slots Kind, typename Rows, int Tasks>
__device__ void put_task(const SparseUnionArgs& args, UnionMemory<T, Dim, BlockSize, Kind>& shared,
                         const Cursor<Tasks>& at, const QueryTile& tile, int group,
                         const Rows& rows, int part_row, int steps) {
    const int lane = threadIdx.x % kWarp;
    shared.q_ring.empty[at.stage].wait(at.parity ^ 1);
    Task& task = shared.tasks[at.stage];
    task.visible[lane] = rows.visible;
    if constexpr (Kind != Slots::none) {
        task.slots[lane] = rows.slots;
        if (lane < kRuns) task.runs[lane] = rows.run;
    }
    shared.scales.put_rows(rows.scales, at.stage);
    __syncwarp();
    if (lane == 0) fetch_queries(args, shared, at.stage, tile, group, part_row, steps);
}

/// The producer warp's position in the steps of all tiles. If `group` is not negative, the keys of
/// the step at `at` have been requested, but its values have not.
template <typename T, int Dim, int BlockSize, Slots Kind>
struct UnionSteps {
    using Memory = UnionMemory<T, Dim, BlockSize, Kind>;
    const SparseUnionArgs& args;
    Memory& shared;
    Cursor<Memory::kStages> at{};
    int group = -1;
    TileRowsAt rows{};
    int64_t number = 0;

    /// Requests the keys of a step, whose blocks the first lanes have.
    __device__ void fetch_next_keys(const QueryTile& tile, int of_group, const UnionBlock& block) {
        // After the union's end, rows before all keys are requested, which are copied as zeros.
        rows = {args.key_map, block.queries != 0
                                  ? args.key_map.first(tile) + block.block * BlockSize
                                  : -BlockSize};
        number = int64_t{tile.first_block + block.block} * args.groups + of_group;
        group = of_group;
        const BlockScales scales = shared.scales.read_block(args, number);
        shared.k_ring.empty[at.stage].wait(at.parity ^ 1);
        fetch_keys(args, shared, at.stage, group, rows, block, scales);
        __syncwarp();
    }
    /// Requests the values of the same step.
    __device__ void fetch_last_values() {
        if (group < 0) return;
        shared.v_ring.empty[at.stage].wait(at.parity ^ 1);
        fetch_values(args, shared, at.stage, group, rows, number);
        __syncwarp();
        at.advance();
        group = -1;
    }
};

/// The producer warp of a team. It requests a step's values after its keys. With kTakeTurns it does
/// so only when the next step begins. So it reads the next tile before it requests the last values
/// of this one, and the next tile's first keys need not wait until this tile's queries are no
/// longer needed. Without kTakeTurns it needs fewer registers.
template <typename T, int Dim, int BlockSize, Slots Kind>
__device__ void produce_blocks(const SparseUnionArgs& args,
                               UnionMemory<T, Dim, BlockSize, Kind>& shared, int team) {
    using Memory = UnionMemory<T, Dim, BlockSize, Kind>;
    constexpr bool kAhead = kTakeTurns<T, Dim>;
    UnionSteps<T, Dim, BlockSize, Kind> steps{args, shared};
    Cursor<Memory::kTasks> q_at;
    const int lane = threadIdx.x % kWarp;
    TileQueue<Memory::kTeamsOf, Memory::kParts> queue(args, team);
    for (; queue.any(args); queue.next(), q_at.advance()) {
        const int tile_index = queue.tile(), group = queue.group(args);
        const int item = tile_index * args.groups + group;
        const QueryTile tile = args.tiles[tile_index];
        const UnionPart part = queue.template part<Memory::kBlocks>(args, item);
        const UnionBlock* const blocks =
            args.workspace.blocks + int64_t{item} * args.top_k * args.tile_queries + part.begin;
        const int count = step_blocks<Dim, BlockSize>(args, tile, blocks, part.count);
        const auto block_from = [&](int first) {  // for this lane, of the step that begins there
            const int n = first + lane % Memory::kBlocks;
            if constexpr (Dim == 256) return n < count ? half_block(args, blocks, n) : UnionBlock{};
            return n < count ? blocks[n] : UnionBlock{};
        };
        UnionBlock next = block_from(0);
        const auto rows = read_rows<Kind>(args, shared, tile_index, tile, group);
        const auto fetch_next_keys = [&](int behind) {
            const UnionBlock block = next;
            next = block_from(behind);
            steps.fetch_next_keys(tile, group, block);
            if (!kAhead) steps.fetch_last_values();
        };
        const auto hand_over = [&] {
            put_task(args, shared, q_at, tile, group, rows, part.row,
                     (count + Memory::kBlocks - 1) / Memory::kBlocks);
        };
        if (count <= Memory::kBlocks && lane == 0) queue.take(args);
        if (!kAhead) hand_over();
        if (kAhead) steps.fetch_last_values();
        if (count > 0) fetch_next_keys(Memory::kBlocks);
        if (kAhead) hand_over();
#pragma unroll 1
        for (int n = Memory::kBlocks; n < count;) {
            n += Memory::kBlocks;
            if (n >= count && lane == 0) queue.take(args);
            if (kAhead) steps.fetch_last_values();
            fetch_next_keys(n);
        }
    }
    if (kAhead) steps.fetch_last_values();
    shared.q_ring.empty[q_at.stage].wait(q_at.parity ^ 1);
    if (lane == 0) {
        shared.tasks[q_at.stage].steps = kNoTask;
        shared.q_ring.full[q_at.stage].expect(0);
    }
    wait_for_previous_kernel();  // since the next kernel waits only for this one
}

}  // namespace msa::cuda::sm90
