// SPDX-License-Identifier: MIT
// Tiles of rows of bf16 or f16 in shared memory as mma.sync reads them. Two values of e4m3 or
// int8 are taken for one of these. 16-byte chunks are permuted within a row, so that neither 16
// bytes of two rows at a time (words_of) nor 8 rows of one chunk (load_matrices) meet in a bank.
//
// words_of() gives a lane 8 neighbouring values of a row: the operands of two products of depth 16.
// The depth is summed in another order than the matrices' own, the same one in both operands.
#pragma once

#include <cstdint>

#include "gpu/device/mma.cuh"
#include "gpu/device/warp.cuh"

namespace msa::cuda {

constexpr int kChunk = 8;  // values in 16 bytes

/// kWidth: values of a row, a multiple of 64.
template <int kWidth>
struct MmaTile {
    static constexpr int kChunks = kWidth / kChunk;
    static constexpr int kSteps = kWidth / 32;  // calls of words_of() for a row
    uint16_t* at;

    static constexpr int bytes(int rows) { return rows * kWidth * 2; }

    __device__ uint16_t* chunk(int row, int chunk) const {
        const int moved = chunk ^ ((row & 1) << 2 | (row >> 1 & 3));
        return at + row * kWidth + moved * kChunk;
    }
    __device__ uint16_t& value(int row, int column) const {
        return chunk(row, column / kChunk)[column % kChunk];
    }
    /// The lane's 8 values of a row, from 32 step + 8 (lane % 4) on.
    __device__ uint4 words_of(int row, int step) const {
        return *reinterpret_cast<const uint4*>(chunk(row, 4 * step + lane_id() % 4));
    }
    /// Operand A [16, 16]: the rows from `row` and the columns from `column` on, in their order.
    __device__ void load_a(uint32_t (&a)[4], int row, int column) const {
        const int lane = lane_id();
        load_matrices(a, chunk(row + lane % 16, column / kChunk + lane / 16));
    }
    /// Operand B of two products: the 16 rows from `row` on are the depth, with the 16 columns from
    /// `column` on.
    __device__ void load_b(uint32_t (&b)[4], int row, int column) const {
        const int lane = lane_id();
        load_transposed(b, chunk(row + lane % 16, column / kChunk + lane / 16));
    }
};

/// sum += A B, two products of depth 16 (8 bits: 32). With g = lane / 4, `low` and `high` are the
/// lane's words of rows g and g + 8 of A, `column` those of column g of B.
template <typename T, typename Sum>
__device__ inline void multiply_words(Sum* sum, const uint4& low, const uint4& high,
                                      const uint4& column) {
    const uint32_t first[4] = {low.x, high.x, low.y, high.y}, first_b[2] = {column.x, column.y};
    const uint32_t second[4] = {low.z, high.z, low.w, high.w}, second_b[2] = {column.z, column.w};
    multiply_16x8<T>(sum, first, first_b);
    multiply_16x8<T>(sum, second, second_b);
}

/// Starts a copy of 16 bytes from global to shared memory, or writes zeros there.
__device__ inline void copy_chunk(void* to, const void* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(
                     static_cast<uint32_t>(__cvta_generic_to_shared(to))),
                 "l"(from), "r"(there ? 16 : 0)
                 : "memory");
}
__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/// Waits at named barrier `Number`, 1 to 15, until `threads` threads of the block have arrived.
template <int Number>
__device__ inline void barrier_of(int threads) {
    asm volatile("bar.sync %0, %1;" ::"n"(Number), "r"(threads) : "memory");
}

/// Sets the number of registers of a thread; called by the four warps of a warpgroup together. An
/// architecture without the instruction keeps the number of the launch. Source: PTX ISA,
/// setmaxnreg.
template <int Registers>
__device__ inline void take_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}
template <int Registers>
__device__ inline void give_up_registers() {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
#endif
}

/// A pair of values of type T, with zeros in place of values that are not finite.
template <typename T>
__device__ inline uint32_t finite_or_zero(uint32_t pair) {
    constexpr uint32_t kExponent = kExponentBits<T>;
    if ((pair & kExponent) == kExponent) pair &= 0xFFFF0000U;
    if ((pair >> 16 & kExponent) == kExponent) pair &= 0x0000FFFFU;
    return pair;
}

/// Two values rounded to T (high), and the errors of this rounding, rounded to T (low). The first
/// value is in the low half of each word.
template <typename T>
struct SplitPair {
    uint32_t high, low;

    __device__ SplitPair(float a, float b) : high(pack<T>(a, b)) {
        const float2 rounded = unpack<T>(high);
        low = pack<T>(a - rounded.x, b - rounded.y);
    }
};

}  // namespace msa::cuda
