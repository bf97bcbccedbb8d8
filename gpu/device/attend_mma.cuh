// SPDX-License-Identifier: MIT
// Attention of 16 rows of a warp to keys in shared memory, with mma.sync: one step of the online
// softmax, for operands of 16 bits and of e4m3.
//
// Values of e4m3 are those of gpu/e4m3_layout.h, whose order of keys makes the scores of a product
// the operand of the next. Each step starts new sums, which are then added to the outputs in float:
// tensor cores keep only 13 bits of a sum of e4m3.
#pragma once

#include <algorithm>

#include "gpu/device/e4m3.cuh"
#include "gpu/device/stream_mma.cuh"
#include "gpu/e4m3_layout.h"

namespace msa::cuda {

/// Values of 16 bits, or pairs of e4m3, in a row of Dim channels; and in a row of a tile.
template <typename T, int Dim>
constexpr int kRowWidth = Dim* static_cast<int>(sizeof(T)) / 2;
template <typename T, int Dim>
constexpr int kTileWidth = std::max(64, kRowWidth<T, Dim>);

/// A lane's view of tiles of the values of TileKeys keys.
template <typename T, int Dim, int TileKeys>
struct LaneValues {
    LaneColumns<Dim> columns;

    __device__ explicit LaneValues(uint32_t tile) : columns(tile) {}
    /// out += weights times the values of the tile at `offset`, from key `first` on.
    template <int Keys>
    __device__ void multiply(float (&out)[1][Dim / 2], const uint32_t (&p)[1][Keys / 4],
                             uint32_t offset, int first) const {
        multiply_values<T, Dim, 1, Keys>(out, p, columns,
                                         offset + static_cast<uint32_t>(first) * Dim * 2);
    }
};
template <int Dim, int TileKeys>
struct LaneValues<__nv_fp8_e4m3, Dim, TileKeys> {
    uint32_t tile;

    __device__ explicit LaneValues(uint32_t of) : tile(of) {}
    /// The same; `first` is 0 or 64. A lane's chunk of the second half of a row of 128 keys has the
    /// first half's address with one bit flipped.
    template <int Keys>
    __device__ void multiply(float (&out)[1][Dim / 2], const uint32_t (&p)[1][Keys / 8],
                             uint32_t offset, int first) const {
        static_assert(Keys == 64);  // 8 channels of them are what shared_matrices() reads
        const int lane = opaque_thread() % kWarp;  // whose place is not kept in a register
        const auto own = static_cast<uint32_t>(swizzled_chunk(lane % 8, lane / 8, TileKeys));
        const uint32_t from = (tile + offset + own) ^ static_cast<uint32_t>(first);
#pragma unroll
        for (int j = 0; j < Dim / 8; ++j) {
            uint32_t b[4];
            shared_matrices(b, from + j * 8 * TileKeys);
            float part[4] = {};
            multiply_16x8<__nv_fp8_e4m3>(part, p[0], b);
            multiply_16x8<__nv_fp8_e4m3>(part, p[0] + 4, b + 2);
#pragma unroll
            for (int i = 0; i < 4; ++i) out[0][4 * j + i] += part[i];
        }
    }
};

/// A lane's view of tiles of the keys and values of TileKeys keys, which lie beside each other.
template <typename T, int Dim, int TileKeys>
struct LaneTiles {
    static constexpr int kKeyBytes = TileKeys * kTileWidth<T, Dim> * 2;
    static constexpr int kValueBytes = TileKeys * Dim * static_cast<int>(sizeof(T));
    LaneWords<kTileWidth<T, Dim>> keys;
    LaneValues<T, Dim, TileKeys> values;

    __device__ LaneTiles(const uint16_t* k, const uint16_t* v)
        : keys(address_in_shared(k)), values(address_in_shared(v)) {}
};

/// What turns the products of a thread's two rows into base-2 logits, but for the scales of keys.
template <typename T>
struct RowScales {
    float all;
    RowScales() = default;
    /// Of rows (query, head).
    __device__ RowScales(float scale, const AttentionScales&, int64_t, int64_t) : all(scale) {}
};
template <>
struct RowScales<__nv_fp8_e4m3> {
    static constexpr float all = 1;
    float row[2];
    RowScales() = default;
    __device__ RowScales(float scale, const AttentionScales& scales, int64_t low, int64_t high)
        : row{scale * scales.q.at(low), scale * scales.q.at(high)} {}
};

/// Adds to `out` and `softmax` the Keys keys of tile number `tile` from `first` on, of which the
/// thread's two rows see `seen`; a row of the warp sees at least one. `block` is of e4m3 alone.
/// `empty`: `out` is 0 so far.
template <typename T, int Dim, int Keys, int TileKeys>
__device__ __forceinline__ void attend(float (&out)[1][Dim / 2], RunningSoftmax<T>& softmax,
                                       const WordRows<kRowWidth<T, Dim>, 1>& q,
                                       const LaneTiles<T, Dim, TileKeys>& tiles, int tile,
                                       int first, const int (&seen)[2], const RowScales<T>& scales,
                                       const BlockScales& block, bool empty) {
    using Tiles = LaneTiles<T, Dim, TileKeys>;
    float sum[1][Keys / 2], factor[2];
    multiply_keys<T, kRowWidth<T, Dim>, 1, Keys>(
        sum, q, tiles.keys,
        static_cast<uint32_t>(tile * Tiles::kKeyBytes + first * kTileWidth<T, Dim> * 2));
    if constexpr (kIsE4m3<T>) {
        const auto step = softmax.meet(sum[0], seen, scales.row, block, factor);
        softmax.weigh(sum[0], step, block, factor);
    } else {
        softmax.step(sum[0], seen, scales.all, factor);
    }
    if (!empty && __any_sync(kAllLanes, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
        for (int i = 0; i < Dim / 2; ++i) out[0][i] *= factor[i / 2 % 2];
    }
    uint32_t p[1][Keys * sizeof(T) / 8];
    keep_weights<T>(p[0], sum[0]);
    tiles.values.template multiply<Keys>(out, p, static_cast<uint32_t>(tile * Tiles::kValueBytes),
                                         first);
}

}  // namespace msa::cuda
