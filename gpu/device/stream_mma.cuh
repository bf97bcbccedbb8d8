// SPDX-License-Identifier: MIT
// Products of rows in registers with tiles of keys and values that stream through shared memory,
// with the instructions of compute capability 8.0: cp.async and mma.sync. Tiles have the layout of
// gpu/device/mma_tile.cuh. A lane's addresses in a tile differ only by constants and one flipped
// bit, so products need no address arithmetic.
//
// A warp has M times 16 rows; sums lie as mma.sync leaves them: element 4 j + 2 side + i is row
// lane / 4 + 8 side, column 8 j + 2 (lane % 4) + i.
#pragma once

#include "gpu/device/mma_tile.cuh"

namespace msa::cuda {

__device__ inline uint32_t address_in_shared(const void* at) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

/// Reads 16 bytes of shared memory. Volatile, so the compiler keeps it after the barrier that it
/// depends on.
__device__ inline uint4 shared_words(uint32_t address) {
    uint4 to;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to.x), "=r"(to.y), "=r"(to.z), "=r"(to.w)
                 : "r"(address));
    return to;
}
__device__ inline void shared_transposed(uint32_t (&to)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}
/// Four 8 x 8 matrices of pairs of bytes, as load_matrices() of gpu/device/mma.cuh.
__device__ inline void shared_matrices(uint32_t (&to)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}

__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Waits until all but the last `Pending` groups of this thread's copies have arrived.
template <int Pending>
__device__ inline void wait_for_groups() {
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}

/// A lane's view of a tile of rows of Dim values, by words of 8 values (MmaTile::words_of).
template <int Dim>
struct LaneWords {
    static constexpr int kSteps = Dim / 32, kRowBytes = Dim * 2;
    uint32_t even;  // address of the lane's words of row lane / 4, for even steps

    __device__ explicit LaneWords(uint32_t tile) {
        const int row = lane_id() / 4, swizzle = (row & 1) << 2 | (row >> 1 & 3);
        even = tile + row * kRowBytes + ((lane_id() % 4 ^ swizzle) << 4);
    }
    /// The lane's words of row `row` + lane / 4. `row` is a multiple of 8, `offset` a multiple of
    /// the bytes of 8 rows.
    __device__ uint4 at(int row, int step, uint32_t offset = 0) const {
        return shared_words(((even + offset) ^ (step & 1) << 6) + row * kRowBytes + step / 2 * 128);
    }
};

/// A lane's view of a tile of rows of Dim values, which are the depth of a product
/// (MmaTile::load_b).
template <int Dim>
struct LaneColumns {
    static constexpr int kRowBytes = Dim * 2;
    uint32_t first;

    __device__ explicit LaneColumns(uint32_t tile) {
        const int row = lane_id() % 16, swizzle = (row & 1) << 2 | (row >> 1 & 3);
        first = tile + row * kRowBytes + ((lane_id() / 16 ^ swizzle) << 4);
    }
    /// The rows from `row` on, a multiple of 16, and the columns from 16 pair on.
    __device__ void at(uint32_t (&b)[4], int row, int pair, uint32_t offset = 0) const {
        shared_transposed(b,
                          ((first + offset) ^ (pair & 3) << 5) + row * kRowBytes + pair / 4 * 128);
    }
};

/// An operand in registers: M times 16 rows of Dim values.
template <int Dim, int M>
struct WordRows {
    uint4 word[M][2][Dim / 32];

    /// row(m, side) points to the lane's row, or is null for zeros.
    template <typename RowAt>
    __device__ void load(RowAt row) {
#pragma unroll
        for (int m = 0; m < M; ++m)
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const uint16_t* const from = row(m, side);
#pragma unroll
                for (int step = 0; step < Dim / 32; ++step)
                    word[m][side][step] = from == nullptr
                                              ? uint4{}
                                              : __ldg(reinterpret_cast<const uint4*>(
                                                    from + 32 * step + kChunk * (lane_id() % 4)));
            }
    }
};

/// sum = rows times Keys keys of a tile.
template <typename T, int Dim, int M, int Keys, int TileDim, typename Sum>
__device__ inline void multiply_keys(Sum (&sum)[M][Keys / 2], const WordRows<Dim, M>& rows,
                                     const LaneWords<TileDim>& keys, uint32_t offset) {
#pragma unroll
    for (int m = 0; m < M; ++m)
#pragma unroll
        for (Sum& x : sum[m]) x = 0;
#pragma unroll
    for (int step = 0; step < Dim / 32; ++step)
#pragma unroll
        for (int j = 0; j < Keys / 8; ++j) {
            const uint4 column = keys.at(8 * j, step, offset);
#pragma unroll
            for (int m = 0; m < M; ++m)
                multiply_words<T>(sum[m] + 4 * j, rows.word[m][0][step], rows.word[m][1][step],
                                  column);
        }
}

/// out += weights [16 M, Keys] times the tile's values.
template <typename T, int Dim, int M, int Keys>
__device__ inline void multiply_values(float (&out)[M][Dim / 2], const uint32_t (&p)[M][Keys / 4],
                                       const LaneColumns<Dim>& values, uint32_t offset) {
#pragma unroll
    for (int step = 0; step < Keys / 16; ++step)
#pragma unroll
        for (int pair = 0; pair < Dim / 16; ++pair) {
            uint32_t b[4];
            values.at(b, 16 * step, pair, offset);
#pragma unroll
            for (int m = 0; m < M; ++m) {
                multiply_16x8<T>(out[m] + 8 * pair, p[m] + 4 * step, b);
                multiply_16x8<T>(out[m] + 8 * pair + 4, p[m] + 4 * step, b + 2);
            }
        }
}

/// Starts copies of Rows rows of Dim values, `stride` values apart; called by the block's first
/// Threads threads. Rows from `there` on become zeros. Rows of the tile have TileDim values.
template <int Dim, int Rows, int Threads, int TileDim = Dim>
__device__ inline void copy_rows(uint16_t* tile, const uint16_t* from, int64_t stride, int there) {
    constexpr int kChunks = Dim / kChunk, kRowsAtOnce = Threads / kChunks;
    static_assert(Rows % kRowsAtOnce == 0 && kRowsAtOnce % 8 == 0);
    const int row = static_cast<int>(threadIdx.x) / kChunks;
    const int chunk = static_cast<int>(threadIdx.x) % kChunks;
    uint16_t* const to = MmaTile<TileDim>{tile}.chunk(row, chunk);
    const uint16_t* const source = from + chunk * kChunk;
#pragma unroll
    for (int first = 0; first < Rows; first += kRowsAtOnce)
        copy_chunk(to + first * TileDim, source + max(0, min(first + row, there - 1)) * stride,
                   first + row < there);
}

}  // namespace msa::cuda
