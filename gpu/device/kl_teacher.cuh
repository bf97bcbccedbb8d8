// SPDX-License-Identifier: MIT
// The teacher's probabilities of a tile of queries: the means over a group's heads.
#pragma once

#include "gpu/device/kl_tiles.cuh"

namespace msa::cuda {

constexpr int kWarpColumns = 32;  // columns (query, head) of a warp

template <int kDim, int kIndexDim, int kGroup>
struct KlShape {
    static constexpr int kQueries = kGroup == 16 ? 16 : kGroup == 8 ? 32 : 64;
    static constexpr int kMainWarps = kQueries * kGroup / kWarpColumns;  // the others wait
    static constexpr int kTurns = kDim > 128 ? 2 : 1;  // in which a warp takes its columns
    static constexpr int kColumnTiles = kWarpColumns / kTurns / 8;
    using Meta = TileMeta<kQueries>;
    static_assert(kMainWarps <= kWorkers && kQueries % kStepQueries == 0);
};

template <typename T, int kDim, int kIndexDim, int kGroup>
struct KlShared {
    using Value = T;
    using Shape = KlShape<kDim, kIndexDim, kGroup>;
    static constexpr int kQueries = Shape::kQueries;
    static constexpr int kTeacherStride = kKlMostKeys + 4;
    MmaTile<kDim> keys;
    MmaTile<kIndexDim> index_keys, rows;  // rows: of two tiles
    MmaTile<kKlMostKeys> high, low;       // t - p by query, in two parts
    float* teacher;                       // p [kQueries][kTeacherStride]
    float* kl;                            // of each 16 keys, [8][kQueries]
    typename Shape::Meta* meta;
    int* unsound;  // whether some of the tile's index operands are not finite

    static constexpr int kBytes = MmaTile<kDim>::bytes(kKlMostKeys) +
                                  MmaTile<kIndexDim>::bytes(kKlMostKeys + 2 * kQueries) +
                                  2 * MmaTile<kKlMostKeys>::bytes(kQueries) +
                                  kQueries * (kTeacherStride + kWorkers) * int{sizeof(float)} +
                                  kMetaBuffers * int{sizeof(typename Shape::Meta)} + 16;

    __device__ explicit KlShared(char* at) {
        const auto take = [&](int bytes) { return at += bytes, at - bytes; };
        const auto take_rows = [&](int bytes) { return reinterpret_cast<uint16_t*>(take(bytes)); };
        keys.at = take_rows(MmaTile<kDim>::bytes(kKlMostKeys));
        index_keys.at = take_rows(MmaTile<kIndexDim>::bytes(kKlMostKeys));
        rows.at = take_rows(MmaTile<kIndexDim>::bytes(2 * kQueries));
        high.at = take_rows(MmaTile<kKlMostKeys>::bytes(kQueries));
        low.at = take_rows(MmaTile<kKlMostKeys>::bytes(kQueries));
        teacher = reinterpret_cast<float*>(take(kQueries * kTeacherStride * int{sizeof(float)}));
        kl = reinterpret_cast<float*>(take(kQueries * kWorkers * int{sizeof(float)}));
        meta = reinterpret_cast<typename Shape::Meta*>(take(kMetaBuffers * int{sizeof(*meta)}));
        unsound = reinterpret_cast<int*>(take(16));
    }
};

/// The columns (query, head) of a tile that the warp takes in a turn, in registers: column 8 j +
/// lane / 4 of tile j.
template <typename T, int kDim, int kIndexDim, int kGroup>
struct MainColumns {
    using Shape = KlShape<kDim, kIndexDim, kGroup>;
    static constexpr int kSteps = MmaTile<kDim>::kSteps;
    uint4 words[Shape::kColumnTiles][kSteps];
    float lse[Shape::kColumnTiles][2];  // base 2, of columns 8 j + 2 (lane % 4) + i

    __device__ static int first_column(int turn) {
        return (warp_id() * Shape::kTurns + turn) * (kWarpColumns / Shape::kTurns);
    }

    __device__ void fetch(const KlBlocks& a, int group, const typename Shape::Meta& meta,
                          int turn = 0) {
        const int first = first_column(turn), lane = lane_id();
#pragma unroll
        for (int j = 0; j < Shape::kColumnTiles; ++j) {
            const int column = first + 8 * j + lane / 4;
            const int64_t query = meta.query[column / kGroup];
            const uint16_t* const row =
                a.q + (query * a.heads + group * kGroup + column % kGroup) * kDim;
#pragma unroll
            for (int step = 0; step < kSteps; ++step)
                words[j][step] =
                    query < 0
                        ? uint4{}
                        : *reinterpret_cast<const uint4*>(row + (4 * step + lane % 4) * kChunk);
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const int own = first + 8 * j + 2 * (lane % 4) + i;
                const int64_t of = meta.query[own / kGroup];
                lse[j][i] = of < 0
                                ? 0.0F
                                : a.main_lse[of * a.heads + group * kGroup + own % kGroup] * kLog2E;
            }
        }
    }

    /// Means over the heads of the queries' probabilities of 16 keys, into `teacher`.
    __device__ void teach(const MmaTile<kDim>& keys, int first_key, float scale,
                          const typename Shape::Meta& meta, int stride, float* teacher,
                          int turn = 0) const {
        const int lane = lane_id(), own = lane % 4, key = first_key + lane / 4;
        float p[Shape::kColumnTiles][4] = {};
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
            const uint4 low = keys.words_of(key, step), high = keys.words_of(key + 8, step);
#pragma unroll
            for (int j = 0; j < Shape::kColumnTiles; ++j)
                multiply_words<T>(p[j], low, high, words[j][step]);
        }
        const int first_query = first_column(turn) / kGroup;
        const auto store = [&](int query, int side, float sum) {
            const int at = first_query + query, k = key + 8 * side;
            teacher[at * stride + k] = k < meta.seen[at] ? sum * (1.0F / kGroup) : 0.0F;
        };
        float sums[Shape::kColumnTiles][2];
#pragma unroll
        for (int j = 0; j < Shape::kColumnTiles; ++j)
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float two[2];
                for (int i = 0; i < 2; ++i)
                    two[i] = exp2_fast(fmaf(p[j][2 * side + i], scale, -lse[j][i]));
                float sum = two[0] + two[1];
                if constexpr (kGroup >= 4) sum += __shfl_xor_sync(kAllLanes, sum, 1);
                if constexpr (kGroup >= 8) sum += __shfl_xor_sync(kAllLanes, sum, 2);
                sums[j][side] = sum;
            }
        if constexpr (kGroup == 16 && Shape::kTurns == 2) {
            if (own < 2)
                store(0, own, own == 0 ? sums[0][0] + sums[1][0] : sums[0][1] + sums[1][1]);
        } else if constexpr (kGroup == 16) {  // a lane stores one of two queries' two sides
            const float both[4] = {sums[0][0] + sums[1][0], sums[0][1] + sums[1][1],
                                   sums[2][0] + sums[3][0], sums[2][1] + sums[3][1]};
            store(own / 2, own % 2,
                  own == 0   ? both[0]
                  : own == 1 ? both[1]
                  : own == 2 ? both[2]
                             : both[3]);
        } else {
#pragma unroll
            for (int j = 0; j < Shape::kColumnTiles; ++j)
#pragma unroll
                for (int side = 0; side < 2; ++side) {
                    if constexpr (kGroup == 8) {
                        if (own == j) store(j, side, sums[j][side]);
                    } else if constexpr (kGroup == 4) {
                        if (own % 2 == side) store(2 * j + own / 2, side, sums[j][side]);
                    } else {
                        store(4 * j + own, side, sums[j][side]);
                    }
                }
        }
    }
};

}  // namespace msa::cuda
