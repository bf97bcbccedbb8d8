// SPDX-License-Identifier: MIT
// When the warps of a thread block merge the scores of their rows into the rows' lists.
#pragma once

#include "gpu/device/score_tiles_sm90.cuh"

namespace msa::cuda::sm90 {

/// Turns of merges: one of few rows, and of 64 channels, whose products are too short to be worth
/// several.
template <typename Shape, typename Rows>
constexpr int kMergeTurns = Rows::kConsumers == 1 || Shape::kDim == 64 ? 1 : 4;

/// A warp's 16 rows of a half are merged every 32 blocks each, in `Turns` turns at equal distances.
/// Warpgroups take turns, too, if there are several turns: merging then never keeps many warps from
/// the tensor cores at once, nor one for longer than the ring lets the others run ahead.
template <int BlocksPerTile, int Turns>
struct MergeTurns {
    static constexpr int kTiles = kWarp / BlocksPerTile;  // from merge to merge of a row
    static constexpr int kTurns = Turns;
    static constexpr int kRows = 16 / Turns;          // of a turn
    static constexpr int kDistance = kTiles / Turns;  // tiles from turn to turn
    static_assert(kRows * Turns == 16 && kDistance * Turns == kTiles);
    unsigned ahead;  // tiles that this warpgroup's turns come early

    __device__ MergeTurns(int warpgroup, int warpgroups)
        : ahead(Turns > 1 ? kDistance * warpgroup / warpgroups : 0) {}
    /// Whether it is some rows' turn once `end` tiles have passed, and whose.
    __device__ bool due(int end) const { return (end + ahead) % kDistance == 0; }
    __device__ int turn(int end) const {
        return static_cast<int>((end + ahead) / kDistance % Turns);
    }
    /// First of the tiles before `end` > 0 that the rows of a turn have still to merge.
    __device__ int begin(int turn, int end) const {
        const unsigned merged_ago = (end + ahead + kTiles - turn * kDistance - 1) % kTiles + 1;
        return max(0, end - static_cast<int>(merged_ago));
    }
};

}  // namespace msa::cuda::sm90
