// SPDX-License-Identifier: MIT
// The products that the kernels of sparse_attention share: 128 rows (queries x the G heads of a
// group) times one key block, by two consumer warpgroups of 64 rows each.
#pragma once

#include "gpu/device/attend_rows.cuh"
#include "gpu/device/pipeline_sm90.cuh"
#include "gpu/device/score_tiles_sm90.cuh"
#include "gpu/device/softmax.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/key_pages.h"

namespace msa::cuda::sm90 {

constexpr int kAttendRows = 128;
using AttendRows = TileRows<2, 1>;

template <int Dim, int BlockSize>
struct AttendShape {
    static constexpr int kBoxes = Dim / 64;
    static constexpr int kQueryBox = kAttendRows * kSwizzle;  // bytes
    static constexpr int kKeyBox = BlockSize * kSwizzle;
    static constexpr int kQueryBytes = kBoxes * kQueryBox;
    static constexpr int kKeyBytes = kBoxes * kKeyBox;
};

/// Copies the keys or values of a head, in boxes of 128 bytes a row that are `KeyBox` apart.
template <int Boxes, int KeyBox>
__device__ void copy_keys(char* to, const CUtensorMap* map, const KeyMap& keys,
                          const TileRowsAt& at, int group, Barrier& full,
                          Keep keep = Keep::normal) {
    for (int box = 0; box < Boxes; ++box) {
        const int column = group * keys.head + 64 * box;
        copy_box(to + box * KeyBox, map, column, at.row, &full, keep);
        if (keys.halved)
            copy_box(to + box * KeyBox + KeyMap::kHalfTile * kSwizzle, map, column, at.second,
                     &full, keep);
    }
}

/// Sets the rows [seen, all) of a tile's values to 0, because they may hold anything; called by a
/// warpgroup that multiplies them next, whose named barrier is `barrier`. The other warpgroup may
/// be doing the same.
template <int Boxes, int KeyBox>
__device__ void clear_behind(char* values, int seen, int all, int barrier) {
    constexpr int kChunks = kSwizzle / 16;
    const int from = max(seen, 0);
    for (int i = threadIdx.x % kWarpgroup; i < (all - from) * kChunks * Boxes; i += kWarpgroup) {
        const int row = from + i / kChunks % (all - from);
        *reinterpret_cast<uint4*>(values + i / kChunks / (all - from) * KeyBox + row * kSwizzle +
                                  i % kChunks * 16) = {};
    }
    fence_shared();
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kWarpgroup) : "memory");
}

/// Starts sum = 64 rows of Q, in boxes of `Rows`, times the block's keys.
template <typename T, int Dim, int BlockSize, int Rows>
__device__ void start_scores(float (&sum)[BlockSize / 2], const char* q, const char* k) {
    using S = AttendShape<Dim, BlockSize>;
    const uint32_t rows = operand_low(shared_address(q)), keys = operand_low(shared_address(k));
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < Dim / 16; ++s)
        multiply_in<T>(sum, operand(rows, s / 4 * Rows * kSwizzle + s % 4 * 32),
                       operand(keys, s / 4 * S::kKeyBox + s % 4 * 32), s > 0);
    wgmma_commit();
}

/// Starts out += P times the block's values.
template <typename T, int Dim, int BlockSize>
__device__ void start_values(float (&out)[Dim / 2], const uint32_t (&p)[BlockSize / 4],
                             const char* v, bool add) {
    using S = AttendShape<Dim, BlockSize>;
    const uint32_t values = operand_low(shared_address(v), S::kKeyBox);
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < BlockSize / 16; ++s)
        multiply_in<T, true>(out, p + 4 * s, operand(values, s * 16 * kSwizzle), add || s > 0);
    wgmma_commit();
}

}  // namespace msa::cuda::sm90
