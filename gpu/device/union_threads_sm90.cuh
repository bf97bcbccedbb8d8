// SPDX-License-Identifier: MIT
// How many tiles a thread block of gpu/kernels/sparse_attention_union_sm90.cu has at once and how
// many keys of each it takes at a step, which threads and registers it has, and in what order the
// consumer warpgroups of a tile begin their products.
#pragma once

#include "gpu/device/attend_e4m3_sm90.cuh"

namespace msa::cuda::sm90 {

constexpr int kShortStepKeys = 64;

/// A team is a producer warp and two consumer warpgroups, which take a tile at a time through
/// shared memory of their own. A thread block has two teams where a thread's output, scores and
/// weights leave room: with 64 channels, in steps of 64 keys, which are whole blocks. Not in e4m3,
/// where a thread has weights and sums of values twice. Teams need no thread block each: two of
/// those would leave a consumer's thread 104 registers, or 96 without setmaxnreg, and it needs
/// more.
template <typename T, int Dim, int BlockSize>
constexpr int kTeams = Dim == 64 && !kIsE4m3<T> && BlockSize <= kShortStepKeys ? 2 : 1;

/// Blocks of a union that a tile takes at one step: a tile of keys, in which each has rows of its
/// own. One of e4m3, as scales are of a block.
template <typename T, int Dim, int BlockSize>
constexpr int kStepBlocks =
    kIsE4m3<T> ? 1 : (kTeams<T, Dim, BlockSize> > 1 ? kShortStepKeys : kTileKeys) / BlockSize;

/// Do the consumer warpgroups take turns, and does the producer read the next tile before it asks
/// for the last values of this one? With 128 channels in bf16 and f16; e4m3 was slower so by 2 %.
template <typename T, int Dim>
constexpr bool kTakeTurns = Dim == 128 && !kIsE4m3<T>;

/// The threads of a thread block: the consumers of all teams, then a warpgroup whose first warps
/// are their producers, which need more registers where they run ahead.
template <int Teams, bool Ahead>
struct UnionThreads {
    static constexpr int kConsumers = AttendRows::kConsumers;  // warpgroups of a team
    static constexpr int kTeamThreads = kConsumers * kWarpgroup, kTeamWarps = kConsumers * 4;
    using Rows = TileRows<Teams * kConsumers, 1>;
    static constexpr int kThreads = Rows::kThreads;
    static constexpr int kConsumer = Teams == 2 ? 112 : Ahead ? 232 : 240;
    static constexpr int kProducer = Teams == 2 ? 32 : Ahead ? 40 : 24;
    static_assert(Rows::kConsumers * kConsumer + kProducer <= Rows::kRegisters);
    static constexpr int kSlotStages = Teams == 1 ? 4 : 3;  // of 4, two teams could not have two
                                                            // tasks each
    static constexpr int kSharedBytes = kMostSharedBytes / Teams;
};
template <typename T, int Dim, int BlockSize>
using UnionThreadsOf = UnionThreads<kTeams<T, Dim, BlockSize>, kTakeTurns<T, Dim>>;

/// The order of two warpgroups, so that one's softmax runs beside the other's products: both have
/// the same turns, the first of the first warpgroup before the first of the second. A turn begins
/// once the other warpgroup has ended its turn before. Named barriers: a warpgroup waits at its
/// own, where the other one only arrives. Both take as many steps of every tile.
template <bool Ordered>
struct Turns {
    static constexpr int kFirstBarrier = 1, kThreads = 2 * kWarpgroup;
    int mine, other;

    /// By all consumers of a team, as the rest. `warpgroup`: of the team, 0 or 1.
    __device__ Turns(int team, int warpgroup)
        : mine(kFirstBarrier + 2 * team + warpgroup), other(mine + 1 - 2 * warpgroup) {
        if (warpgroup == 1) end();  // what the first turn of all waits for
    }
    __device__ void begin() const {
        asm volatile("bar.sync %0, %1;" ::"r"(mine), "n"(kThreads) : "memory");
    }
    __device__ void end() const {
        asm volatile("bar.arrive %0, %1;" ::"r"(other), "n"(kThreads) : "memory");
    }
    /// After all turns: takes the last arrival, which no turn is left for.
    __device__ void leave() const {
        if (mine < other) begin();
    }
};
template <>
struct Turns<false> {
    __device__ Turns(int, int) {}
    __device__ void begin() const {}
    __device__ void end() const {}
    __device__ void leave() const {}
};

}  // namespace msa::cuda::sm90
