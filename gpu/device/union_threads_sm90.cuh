// SPDX-License-Identifier: MIT
// The organisation of a thread block of gpu/kernels/sparse_attention_union_sm90.cu: how many tiles
// it has at once, how many keys a step takes, its threads and registers, and the order in which the
// consumer warpgroups of a tile begin their products.
#pragma once

#include "gpu/device/attend_e4m3_sm90.cuh"
#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda::sm90 {

/// A team is a producer warp and two consumer warpgroups, which process one tile at a time in their
/// own shared memory. A thread block has two teams if the registers suffice for a thread's output,
/// scores and weights: with 64 channels, in steps of 64 keys, which must be whole blocks. In e4m3
/// they do not suffice, since a thread has weights and sums of values twice. Two thread blocks of
/// one team each would leave a consumer's thread only 104 registers (96 without setmaxnreg), which
/// is too few.
template <typename T, int Dim, int BlockSize>
constexpr int kTeams = sparse_union_teams(Dim, BlockSize, sizeof(T));

/// Blocks of a union that a tile takes in one step: as many as fill a tile of keys. In e4m3 one,
/// because each block has its own scales. With 256 channels one too, of kSparseWideStepKeys keys:
/// a block of 128 is two of them.
template <typename T, int Dim, int BlockSize>
constexpr int kStepBlocks =
    kIsE4m3<T> || Dim == 256
        ? 1
        : (kTeams<T, Dim, BlockSize> > 1 ? kSparseShortStepKeys : kTileKeys) / BlockSize;

/// Whether the consumer warpgroups take turns, and the producer reads the next tile before it
/// requests the last values of this one: with 128 channels in bf16 and f16. It made e4m3 2 %
/// slower, and 256 channels 1 to 2 % at 32K.
template <typename T, int Dim>
constexpr bool kTakeTurns = Dim == 128 && !kIsE4m3<T>;

/// The threads of a thread block: the consumers of all teams, then a warpgroup whose first warps
/// are the teams' producers. Producers that run ahead (Ahead) need more registers.
template <int Teams, bool Ahead, bool Wide>
struct UnionThreads {
    static constexpr int kConsumers = AttendRows::kConsumers;  // warpgroups of a team
    static constexpr int kTeamThreads = kConsumers * kWarpgroup, kTeamWarps = kConsumers * 4;
    using Rows = TileRows<Teams * kConsumers, 1>;
    static constexpr int kThreads = Rows::kThreads;
    static constexpr int kConsumer = Teams == 2 ? 112 : Ahead ? 232 : 240;
    static constexpr int kProducer = Teams == 2 ? 32 : Ahead ? 40 : 24;
    static_assert(Rows::kConsumers * kConsumer + kProducer <= Rows::kRegisters);
    // With 4, there would be no room for two tasks of each of two teams; with 2, none for two
    // stages of 256 channels.
    static constexpr int kSlotStages = Wide ? 1 : Teams == 1 ? 4 : 3;
    static constexpr int kSharedBytes = kMostSharedBytes / Teams;
};
template <typename T, int Dim, int BlockSize>
using UnionThreadsOf = UnionThreads<kTeams<T, Dim, BlockSize>, kTakeTurns<T, Dim>, (Dim > 128)>;

/// Makes two warpgroups alternate, so that the softmax of one overlaps with the products of the
/// other. Both have the same number of turns, and the first warpgroup begins. A turn begins once
/// the other warpgroup has ended its previous turn. A warpgroup waits at its own named barrier,
/// where the other one only arrives.
template <bool Ordered>
struct Turns {
    static constexpr int kFirstBarrier = 1, kThreads = 2 * kWarpgroup;
    int mine, other;

    /// Called by all consumers of a team, like the other functions. `warpgroup`: of the team, 0
    /// or 1.
    __device__ Turns(int team, int warpgroup)
        : mine(kFirstBarrier + 2 * team + warpgroup), other(mine + 1 - 2 * warpgroup) {
        if (warpgroup == 1) end();  // so that the very first turn can begin
    }
    __device__ void begin() const {
        asm volatile("bar.sync %0, %1;" ::"r"(mine), "n"(kThreads) : "memory");
    }
    __device__ void end() const {
        asm volatile("bar.arrive %0, %1;" ::"r"(other), "n"(kThreads) : "memory");
    }
    /// After all turns: the first warpgroup consumes the last arrival, which no turn waits for.
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
