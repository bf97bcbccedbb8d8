// SPDX-License-Identifier: MIT
// The producer warps of index_kl_sm90: they take items and load the operands of tiles and steps.
#pragma once

#include "gpu/device/exp2.cuh"
#include "gpu/device/kl_stage_sm90.cuh"
#include "gpu/device/mma_tile.cuh"

namespace msa::cuda::sm90 {

/// Calls body(item, its number) for each of the thread block's items. For warps that do not take
/// items themselves.
template <typename Memory, typename Body>
__device__ void for_each_item(Memory& shared, Body body) {
    for (uint32_t taken = 0;; ++taken) {
        const KlItem item = wait_item(shared, taken).item;
        give_item_back(shared, taken);
        if (item.begin == item.end) return;
        body(item, taken);
    }
}

/// Calls body(the tile's queries, the lap's number in the tile) for each lap of an item's tiles;
/// `lap` counts them all.
template <int HeadBits, typename Body>
__device__ void for_each_lap(const KlBlocks& a, const KlItem& item, uint32_t& lap, Body body) {
    const auto uses = static_cast<int>(item.end - item.begin);
    KlQueries next(a, item, 0);
    for (int first = 0; first < uses; first += kKlRows) {
        const KlQueries now = next;
        next = KlQueries(a, item, first + kKlRows);
        const int laps = kl_laps<HeadBits>(min(kKlRows, uses - first));
        for (int n = 0; n < laps; ++n, ++lap) body(now, n);
    }
}

/// The producer warp that takes items and loads q.
template <int HeadBits, int Dim, int IndexDim, int BlockSize>
__device__ void gather_queries(const KlTunedArgs& args,
                               KlMemory<Dim, IndexDim, BlockSize>& shared) {
    using S = KlShape<Dim, IndexDim, BlockSize>;
    constexpr int kQueries = kKlRows >> HeadBits;  // of a step
    const KlBlocks& a = args.blocks;
    const int lane = lane_id(), heads = a.heads / a.groups;
    const int found = a.item_starts[a.groups * a.block_count];
    const auto bytes = static_cast<uint32_t>(kQueries * heads * Dim * 2);
    const auto take = [&] {
        int taken = 0;
        if (lane == 0) taken = atomicAdd(a.taken, 1);
        taken = __shfl_sync(kAllLanes, taken, 0);
        if (taken >= found) return KlWork{};
        const int number = a.order[taken];
        return KlWork{a.items[number], number};
    };
    uint32_t lap = 0;
    KlWork work = take();
    for (uint32_t taken = 0;; ++taken) {
        const int stage = stage_of<kItemStages>(taken);
        shared.item_empty[stage].wait(parity_of<kItemStages>(taken) ^ 1);
        if (lane == 0) {
            shared.items[stage] = work;
            shared.item_full[stage].arrive();
        }
        const KlItem item = work.item;
        if (work.uses() == 0) return;
        work = take();
        for_each_lap<HeadBits>(a, item, lap, [&](const KlQueries& now, int n) {
#pragma unroll
            for (int step = 0; step < kKlStages; ++step) {
                int query[kQueries];
#pragma unroll
                for (int c = 0; c < kQueries; ++c)
                    query[c] = now.of(kl_use<HeadBits>(kKlStages * n + step, c));
                Barrier& full = shared.full[step];
                shared.empty[step].wait(lap % 2 ^ 1);
                if (!elect_one()) continue;
                full.expect(bytes);
#pragma unroll
                for (int c = 0; c < kQueries; ++c)
#pragma unroll
                    for (int box = 0; box < S::kBoxes; ++box)
                        copy_box(shared.q[step][box] + (c << HeadBits) * kSwizzle, &args.q_one,
                                 64 * box, item.group * heads, query[c], &full, Keep::longest);
            }
        });
    }
}

/// The producer warp that loads the heads' lse, two columns per lane.
template <int HeadBits, int Dim, int IndexDim, int BlockSize>
__device__ void gather_lse(const KlTunedArgs& args, KlMemory<Dim, IndexDim, BlockSize>& shared) {
    const KlBlocks& a = args.blocks;
    const int lane = lane_id(), heads = a.heads / a.groups;
    const auto none = static_cast<int>(args.queries * a.heads);
    uint32_t lap = 0;
    for_each_item(shared, [&](const KlItem& item, uint32_t) {
        for_each_lap<HeadBits>(a, item, lap, [&](const KlQueries& now, int n) {
#pragma unroll
            for (int step = 0; step < kKlStages; ++step) {
                const float* from[2];
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int column = lane + kWarp * half, head = column % (1 << HeadBits);
                    const int query =
                        now.of(kl_use<HeadBits>(kKlStages * n + step, column >> HeadBits));
                    from[half] =
                        args.lse +
                        (head < heads ? query * a.heads + item.group * heads + head : none);
                }
                shared.empty[step].wait(lap % 2 ^ 1);
                copy_float(shared.lse[step] + lane, from[0]);
                copy_float(shared.lse[step] + lane + kWarp, from[1]);
                arrive_after_copies(shared.full[step]);
            }
        });
    });
}

/// The producer warp that loads index_k by TMA, and a tile's rows of index_q by cp.async: TMA takes
/// as long for each of them as for a query's heads.
template <int Dim, int IndexDim, int BlockSize>
__device__ void gather_index(const KlTunedArgs& args, KlMemory<Dim, IndexDim, BlockSize>& shared) {
    using S = KlShape<Dim, IndexDim, BlockSize>;
    constexpr int kChunks = S::kIndexBoxes * kSwizzle / 16, kRowsAtOnce = kWarp / kChunks;
    const KlBlocks& a = args.blocks;
    const int lane = lane_id(), chunk = lane % kChunks;
    const auto row_bytes = static_cast<uint64_t>(a.groups * IndexDim * 2);
    uint32_t tile = 0;
    for_each_item(shared, [&](const KlItem& item, uint32_t taken) {
        const auto uses = static_cast<int>(item.end - item.begin);
        shared.keys_empty.wait(parity_of<1>(taken) ^ 1);
        if (lane == 0) {
            shared.keys_full.expect(S::kIndexBoxes * S::kKeyBox);
            for (int box = 0; box < S::kIndexBoxes; ++box)
                copy_box(shared.index_k[box], &args.index_k, 64 * box,
                         static_cast<int>(a.blocks[item.block].key), &shared.keys_full);
        }
        __syncwarp();
        const char* const from =
            reinterpret_cast<const char*>(a.index_q) + item.group * IndexDim * 2 + chunk * 16;
        for (int first = 0; first < uses; first += kKlRows, ++tile) {
            const KlQueries queries(a, item, first);
            const int to = stage_of<S::kTileStages>(tile);
            shared.tile_empty[to].wait(parity_of<S::kTileStages>(tile) ^ 1);
#pragma unroll 4
            for (int n = 0; n < kKlRows; n += kRowsAtOnce) {
                const int row = n + lane / kChunks;
                copy_chunk(shared.index_q[to][chunk / 8] + row * kSwizzle + (chunk ^ row) % 8 * 16,
                           from + static_cast<uint32_t>(queries.of(row)) * row_bytes, true);
            }
            arrive_after_copies(shared.tile_full[to]);
        }
    });
}

/// The producer warp that loads the KlUses of a tile.
template <typename T, int Dim, int IndexDim, int BlockSize>
__device__ void gather_uses(const KlTunedArgs& args, KlMemory<Dim, IndexDim, BlockSize>& shared) {
    using S = KlShape<Dim, IndexDim, BlockSize>;
    const KlBlocks& a = args.blocks;
    const int lane = lane_id();
    uint32_t tile = 0;
    for_each_item(shared, [&](const KlItem& item, uint32_t) {
        const SequenceBlock block = a.blocks[item.block];
        const auto uses = static_cast<int>(item.end - item.begin);
        for (int first = 0; first < uses; first += kKlRows, ++tile) {
            const KlQueries queries(a, item, first);
            int slot[2], seen[2];
            float lse[2];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int64_t query = queries.query[half], row = query * a.groups + item.group;
                const int use = first + lane + kWarp * half;
                const bool there = use < uses;
                slot[half] = there ? static_cast<int>(number_of(
                                         a, row, slot_of(a, block, row, item.begin + use)))
                                   : -1;
                seen[half] = there ? seen_of_block(a, block, query) : 0;
                lse[half] = a.index_lse[row] * kLog2E - kKlUnitLog2<T>;
            }
            const int to = stage_of<S::kTileStages>(tile);
            shared.tile_empty[to].wait(parity_of<S::kTileStages>(tile) ^ 1);
            KlUses& here = shared.uses[to];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int use = lane + kWarp * half;
                here.index_lse[use] = lse[half];
                here.slot[use] = slot[half];
                here.seen[use] = static_cast<uint8_t>(seen[half]);
            }
            __syncwarp();
            if (lane == 0) shared.tile_full[to].arrive();
        }
    });
}

}  // namespace msa::cuda::sm90
