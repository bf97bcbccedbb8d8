// SPDX-License-Identifier: MIT
// The schedule by which the warps of a thread block merge the scores of their rows into the rows'
// lists.
#pragma once

#include "gpu/device/score_tiles_sm90.cuh"

namespace msa::cuda::sm90 {

/// Turns of merges. There is one turn with few rows, and with 64 channels, because products are
/// then too short for several turns to pay.
template <typename Shape, typename Rows>
constexpr int kMergeTurns = Rows::kConsumers == 1 || Shape::kDim == 64 ? 1 : 4;

/// Each of a warp's 16 rows of a half is merged every 32 blocks, in `Turns` turns at equal
/// distances. If there are several turns, the warpgroups' turns are at different tiles, too. So
/// merging never keeps many warps from the tensor cores at once, nor one warp for longer than the
/// ring buffer lets the others run ahead. Of at most 32 blocks, all rows are merged once, at the
/// end: their lists are still filling, so that a second merge takes as long as the first.
template <int BlocksPerTile, int Turns>
struct MergeTurns {
    static constexpr int kTiles = kWarp / BlocksPerTile;  // from merge to merge of a row
    static constexpr int kTurns = Turns;
    static constexpr int kRows = 16 / Turns;          // of a turn
    static constexpr int kDistance = kTiles / Turns;  // tiles from turn to turn
    static_assert(kRows * Turns == 16 && kDistance * Turns == kTiles);
    unsigned ahead;  // by how many tiles this warpgroup's turns come earlier
    bool once;

    /// `tiles`: of all.
    __device__ MergeTurns(int warpgroup, int warpgroups, int tiles)
        : ahead(Turns > 1 ? kDistance * warpgroup / warpgroups : 0),
          once(Turns > 1 && tiles <= kTiles) {}
    /// Whether rows are to be merged after `end` tiles; turn() says which.
    __device__ bool due(int end) const { return !once && (end + ahead) % kDistance == 0; }
    __device__ int turn(int end) const {
        return static_cast<int>((end + ahead) / kDistance % Turns);
    }
    /// The first of the tiles before `end` > 0 that the rows of a turn have not merged yet.
    __device__ int begin(int turn, int end) const {
        const unsigned merged_ago = (end + ahead + kTiles - turn * kDistance - 1) % kTiles + 1;
        return once ? 0 : max(0, end - static_cast<int>(merged_ago));
    }
};

}  // namespace msa::cuda::sm90
