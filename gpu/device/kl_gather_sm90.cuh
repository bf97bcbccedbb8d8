// SPDX-License-Identifier: MIT
// The producer warps of index_kl_sm90: they take items and load the operands of tiles and steps.
#pragma once

#include "gpu/device/exp2.cuh"
#include "gpu/device/kl_stage_sm90.cuh"

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

/// The producer warp that takes items and loads q.
template <int Dim, int IndexDim, int BlockSize>
__device__ void gather_queries(const KlTunedArgs& args,
                               KlMemory<Dim, IndexDim, BlockSize>& shared) {
    using S = KlShape<Dim, IndexDim, BlockSize>;
    const KlBlocks& a = args.blocks;
    const int lane = lane_id(), heads = a.heads / a.groups, bits = args.head_bits;
    const int queries = kKlRows >> bits, copies = queries * S::kBoxes;
    const int found = a.item_starts[a.groups * a.block_count];
    const auto bytes = static_cast<uint32_t>(queries * heads * Dim * 2);
    const auto take = [&] {
        int taken = 0;
        if (lane == 0) taken = atomicAdd(a.taken, 1);
        taken = __shfl_sync(kAllLanes, taken, 0);
        if (taken >= found) return KlWork{};
        const int number = a.order[taken];
        return KlWork{a.items[number], number};
    };
    uint32_t at = 0;
    KlWork work = take();
    for (uint32_t taken = 0;; ++taken) {
        const int stage = stage_of<kItemStages>(taken);
        shared.item_empty[stage].wait(parity_of<kItemStages>(taken) ^ 1);
        if (lane == 0) {
            shared.items[stage] = work;
            shared.item_full[stage].arrive();
        }
        const KlItem item = work.item;
        const int uses = work.uses();
        if (uses == 0) return;
        work = take();
        KlQueries next(a, item, 0);
        for (int first = 0; first < uses; first += kKlRows) {
            const KlQueries now = next;
            next = KlQueries(a, item, first + kKlRows);
            const int steps = kl_steps(bits, min(kKlRows, uses - first));
            for (int step = 0; step < steps; ++step, ++at) {
                const int to = stage_of<S::kStages>(at);
                Barrier& full = shared.full[to];
                shared.empty[to].wait(parity_of<S::kStages>(at) ^ 1);
                if (lane == 0) full.expect(bytes);
                __syncwarp();
                for (int i = lane; i - lane < copies; i += kWarp) {
                    const int place = i / S::kBoxes, box = i % S::kBoxes;
                    const int query = now.of(kl_use(bits, step, place));
                    if (i < copies)
                        copy_box(shared.q[to][box] + (place << bits) * kSwizzle, &args.q_one,
                                 64 * box, item.group * heads, query, &full, Keep::longest);
                }
            }
        }
    }
}

/// The producer warp that loads the heads' lse, two columns per lane.
template <int Dim, int IndexDim, int BlockSize>
__device__ void gather_lse(const KlTunedArgs& args, KlMemory<Dim, IndexDim, BlockSize>& shared) {
    using S = KlShape<Dim, IndexDim, BlockSize>;
    const KlBlocks& a = args.blocks;
    const int lane = lane_id(), heads = a.heads / a.groups, bits = args.head_bits;
    const auto none = static_cast<int>(args.queries * a.heads);
    uint32_t at = 0;
    for_each_item(shared, [&](const KlItem& item, uint32_t) {
        const auto uses = static_cast<int>(item.end - item.begin);
        KlQueries next(a, item, 0);
        for (int first = 0; first < uses; first += kKlRows) {
            const KlQueries now = next;
            next = KlQueries(a, item, first + kKlRows);
            const int steps = kl_steps(bits, min(kKlRows, uses - first));
            for (int step = 0; step < steps; ++step, ++at) {
                const int to = stage_of<S::kStages>(at);
                shared.empty[to].wait(parity_of<S::kStages>(at) ^ 1);
#pragma unroll
                for (int half = 0; half < 2; ++half) {
                    const int column = lane + kWarp * half, head = column & ((1 << bits) - 1);
                    const int query = now.of(kl_use(bits, step, column >> bits));
                    copy_float(
                        shared.lse[to] + column,
                        args.lse +
                            (head < heads ? query * a.heads + item.group * heads + head : none));
                }
                arrive_after_copies(shared.full[to]);
            }
        }
    });
}

/// The producer warp that loads index_k, index_q and the KlUses of a tile.
template <typename T, int Dim, int IndexDim, int BlockSize>
__device__ void gather_tiles(const KlTunedArgs& args, KlMemory<Dim, IndexDim, BlockSize>& shared) {
    using S = KlShape<Dim, IndexDim, BlockSize>;
    const KlBlocks& a = args.blocks;
    const int lane = lane_id();
    uint32_t tile = 0;
    for_each_item(shared, [&](const KlItem& item, uint32_t taken) {
        const SequenceBlock block = a.blocks[item.block];
        const auto uses = static_cast<int>(item.end - item.begin);
        shared.keys_empty.wait(parity_of<1>(taken) ^ 1);
        if (lane == 0) {
            shared.keys_full.expect(S::kIndexBoxes * S::kKeyBox);
            for (int box = 0; box < S::kIndexBoxes; ++box)
                copy_box(shared.index_k[box], &args.index_k, 64 * box, static_cast<int>(block.key),
                         &shared.keys_full);
        }
        __syncwarp();
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
            Barrier& full = shared.tile_full[to];
            shared.tile_empty[to].wait(parity_of<S::kTileStages>(tile) ^ 1);
            if (lane == 0) full.expect(kKlRows * IndexDim * 2);
            __syncwarp();
#pragma unroll 1
            for (int i = lane; i < kKlRows * S::kIndexBoxes; i += kWarp) {
                const int use = i / S::kIndexBoxes, box = i % S::kIndexBoxes;
                copy_box(shared.index_q[to][box] + use * kSwizzle, &args.index_q_one, 64 * box,
                         item.group, queries.of(use), &full);
            }
            KlUses& here = shared.uses[to];
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const int use = lane + kWarp * half;
                here.index_lse[use] = lse[half];
                here.slot[use] = slot[half];
                here.seen[use] = static_cast<uint8_t>(seen[half]);
            }
            __syncwarp();
            if (lane == 0) full.arrive();
        }
    });
}

}  // namespace msa::cuda::sm90
