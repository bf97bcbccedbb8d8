// SPDX-License-Identifier: MIT
// The stream of key tiles of gpu/device/score_tiles_sm90.cuh, from keys in pages.
#pragma once

#include "gpu/device/score_tiles_sm90.cuh"
#include "gpu/key_pages.h"

namespace msa::cuda::sm90 {

/// produce() by a warp, for keys in pages from place `first` on. The rows of 32 boxes are looked up
/// at once, before they are needed.
template <typename Shape, int Stages>
__device__ void produce_pages(const CUtensorMap* keys, const KeyMap& map, int column, int first,
                              int count, char* tiles, Ring<Stages>& ring,
                              Keep keep = Keep::normal) {
    const int lane = threadIdx.x % kWarp, boxes = map.halved ? 2 : 1;  // of a tile
    const int box_keys = Shape::kKeys / boxes;
    const auto rows_from = [&](int n) { return map.row(first + (n + lane) * box_keys); };
    Cursor<Stages> at;
    int rows = 0, coming = rows_from(0);
    for (int n = 0; n < count * boxes; ++n) {
        if (n % kWarp == 0) rows = coming, coming = rows_from(n + kWarp);
        const int row = __shfl_sync(kAllLanes, rows, n % kWarp);
        const int half = n % boxes;
        if (lane == 0) {
            Barrier& full = ring.full[at.stage];
            if (half == 0) {
                ring.empty[at.stage].wait(at.parity ^ 1);
                full.expect(Shape::kTileBytes);
            }
            for (int box = 0; box < Shape::kBoxes; ++box)
                copy_box(tiles + at.stage * Shape::kTileBytes + box * Shape::kBoxBytes +
                             half * (box_keys * kSwizzle),
                         keys, column + box * kSwizzle / Shape::kBytes, row, &full, keep);
        }
        if (half == boxes - 1) at.advance();
    }
}

}  // namespace msa::cuda::sm90
