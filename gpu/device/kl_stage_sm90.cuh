// SPDX-License-Identifier: MIT
// The shared memory through which the warps of index_kl_sm90 work together, and the order of
// queries in it.
//
// A tile is 64 uses of a block. The teacher's products take 64 columns (query, head) per step. A
// query takes G columns, rounded up to a power of two, at least 4: 2^HeadBits of them. Columns
// without a head get probability 0. Four steps are a lap, once around the ring buffer: the step's
// place in the lap is its stage.
#pragma once

#include "gpu/device/kl_uses.cuh"
#include "gpu/device/pipeline_sm90.cuh"
#include "gpu/device/score_tiles_sm90.cuh"
#include "gpu/kernels/index_kl_sm90.h"

namespace msa::cuda::sm90 {

constexpr int kKlRows = 64;                         // uses of a tile, columns of a step
constexpr int kKlRowsBox = kKlRows * kSwizzle;      // bytes
constexpr int kKlProducers = 4;                     // warps
constexpr int kKlStages = 4;                        // of q and lse: steps of a lap
constexpr int kKlSums = kKlRows * 64 / kWarpgroup;  // sums per thread of a 64 x 64 product

template <int Dim, int IndexDim, int BlockSize>
struct KlShape {
    static constexpr int kBoxes = Dim / 64, kIndexBoxes = IndexDim / 64;
    static constexpr int kKeyBox = BlockSize * kSwizzle;  // bytes
    static constexpr int kMain = BlockSize / 64;          // warpgroups, each of 64 keys
    static constexpr int kTileStages = 2;
    static constexpr int kThreads = (kMain + 1) * kWarpgroup;
    static constexpr bool kSmall = Dim == 64 && BlockSize == 64;
    static constexpr int kBlocksPerProcessor = kSmall ? 2 : 1;
    static constexpr int kMainRegisters = kSmall ? 200 : kMain == 1 ? 240 : 224;
    static constexpr int kProducerRegisters = 56;
    static_assert(kMain * kMainRegisters + kProducerRegisters <=
                  launch_registers(kThreads, kBlocksPerProcessor));
};

/// An item and its number among those of the launch. No uses: there are no more items.
struct KlWork {
    KlItem item;
    int32_t number;
    __device__ int uses() const { return static_cast<int>(item.end - item.begin); }
};

/// The uses (query, block) of a tile.
struct KlUses {
    float index_lse[kKlRows];  // base 2, less kKlUnitLog2
    int slot[kKlRows];         // number in [piece, Hkv, slots]; negative: no use
    uint8_t seen[kKlRows];     // keys of the block; 0: no use
};

template <int Dim, int IndexDim, int BlockSize>
struct KlMemory {
    using S = KlShape<Dim, IndexDim, BlockSize>;
    char q[kKlStages][S::kBoxes][kKlRowsBox];
    char index_q[S::kTileStages][S::kIndexBoxes][kKlRowsBox];
    char index_k[S::kIndexBoxes][S::kKeyBox];
    char high[S::kMain][kKlRowsBox], low[S::kMain][kKlRowsBox];  // t - p, [uses][64 keys]
    float targets[S::kMain][kKlSums][kWarpgroup];                // p kKlUnit, each thread's own
    float kl[4 * S::kMain][kKlRows];  // of a warp's keys, in bits, times kKlUnit
    float lse[kKlStages][kKlRows];
    KlUses uses[S::kTileStages];
    KlWork items[kItemStages];
    uint32_t unsound;  // number, from 1, of the last tile whose index operands are not all finite
    Barrier item_full[kItemStages], item_empty[kItemStages];
    Barrier full[kKlStages], empty[kKlStages];                      // q and lse
    Barrier tile_full[S::kTileStages], tile_empty[S::kTileStages];  // index_q and uses
    Barrier keys_full, keys_empty;                                  // index_k
    Barrier parts_full, parts_empty;                                // high and low

    /// By one thread, before a barrier of the block.
    __device__ void init() {
        for (Barrier& b : item_full) b.init(1);
        for (Barrier& b : item_empty) b.init(4 * S::kMain + kKlProducers - 1);
        for (Barrier& b : full) b.init(1 + kWarp);
        for (Barrier& b : empty) b.init(4 * S::kMain);
        for (Barrier& b : tile_full) b.init(kWarp + 1);
        for (Barrier& b : tile_empty) b.init(4 * S::kMain);
        keys_full.init(1);
        keys_empty.init(4 * S::kMain);
        parts_full.init(4 * S::kMain);
        parts_empty.init(4 * S::kMain);
        unsound = 0;
        fence_barriers();
    }
};

/// Laps of a tile with `uses` uses.
template <int HeadBits>
__device__ int kl_laps(int uses) {
    constexpr int kLapUses = kKlStages * kKlRows >> HeadBits;
    return (uses + kLapUses - 1) / kLapUses;
}
/// The use of the tile at place `c` of a step. With this order, sums over heads (join_heads) leave
/// each thread the uses of its own columns of the index scores.
template <int HeadBits>
__device__ int kl_use(int step, int c) {
    if constexpr (HeadBits == 4) return 8 * (step / 2) + 2 * c + step % 2;
    if constexpr (HeadBits == 3) return 8 * step + c;
    return 16 * step + c / 4 % 2 * 8 + (c % 2 * 2 + c / 8) * 2 + c / 2 % 2;
}

/// The queries of a tile's uses from `first` on, two per lane.
struct KlQueries {
    int query[2];

    __device__ static int at(const KlBlocks& a, const KlItem& item, int use) {
        return static_cast<int>(query_of_use(a, item.begin + use));
    }
    /// Places beyond the item's last use repeat it.
    __device__ KlQueries(const KlBlocks& a, const KlItem& item, int first) {
        const int last = static_cast<int>(item.end - item.begin) - 1;
        for (int half = 0; half < 2; ++half)
            query[half] = at(a, item, min(first + lane_id() + kWarp * half, last));
    }
    /// The query of a use of the tile; called by the whole warp.
    __device__ int of(int use) const {
        const int low = __shfl_sync(kAllLanes, query[0], use % kWarp);
        const int high = __shfl_sync(kAllLanes, query[1], use % kWarp);
        return use < kWarp ? low : high;
    }
};

}  // namespace msa::cuda::sm90
