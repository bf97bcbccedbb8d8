// SPDX-License-Identifier: MIT
// Rings of stages in shared memory in the instructions of compute capability 8.0: one warp copies
// ahead (cp.async), others consume at their own pace. Source: PTX ISA, mbarrier and
// cp.async.mbarrier.arrive.
#pragma once

#include "gpu/device/stream_mma.cuh"

namespace msa::cuda {

/// A barrier that counts arrivals; its phase flips when all have arrived.
struct ArrivalBarrier {
    uint64_t word;

    __device__ void init(int arrivals) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address_in_shared(this)),
                     "r"(arrivals)
                     : "memory");
    }
    __device__ void arrive() {
        asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared.b64 state, [%0];\n}\n" ::"r"(
                         address_in_shared(this))
                     : "memory");
    }
    /// Arrives once all copies that this thread has started have arrived.
    __device__ void arrive_with_copies() {
        asm volatile(
            "cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(address_in_shared(this))
            : "memory");
    }
    /// Returns once the phase of this parity is complete.
    __device__ void wait(uint32_t parity) {
        asm volatile(
            "{\n"
            ".reg .pred done;\n"
            "again:\n"
            "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
            "@!done bra again;\n"
            "}\n" ::"r"(address_in_shared(this)),
            "r"(parity)
            : "memory");
    }
};

/// The position of a producer or consumer in a ring buffer.
template <int Stages>
struct RingPlace {
    int stage = 0;
    uint32_t parity = 0;
    __device__ void advance() {
        if (++stage == Stages) stage = 0, parity ^= 1;
    }
};

/// Starts copies of Rows rows of Dim values, `stride` values apart; called by one warp. Rows from
/// `there` on become zeros. `there` must be at least 1. Rows of the tile have TileDim values.
template <int Dim, int Rows, int TileDim = Dim>
__device__ inline void warp_copy_rows(uint16_t* tile, const uint16_t* from, int64_t stride,
                                      int there) {
    constexpr int kChunks = Dim / kChunk, kAtOnce = kWarp / kChunks, kTurns = 8 / kAtOnce;
    const int row = lane_id() / kChunks, chunk = lane_id() % kChunks;
    uint16_t* to[kTurns];
    const uint16_t* source[kTurns];
#pragma unroll
    for (int n = 0; n < kTurns; ++n) {
        to[n] = MmaTile<TileDim>{tile}.chunk(row + n * kAtOnce, chunk);
        source[n] = from + (row + n * kAtOnce) * stride + chunk * kChunk;
    }
    if (there >= Rows) {
#pragma unroll
        for (int first = 0; first < Rows; first += 8)
#pragma unroll
            for (int n = 0; n < kTurns; ++n) {
                copy_chunk(to[n] + first * TileDim, source[n], true);
                source[n] += 8 * stride;
            }
        return;
    }
#pragma unroll 1
    for (int first = 0; first < Rows; first += 8)
#pragma unroll
        for (int n = 0; n < kTurns; ++n) {
            const bool mine = first + row + n * kAtOnce < there;
            copy_chunk(to[n] + first * TileDim, mine ? source[n] : from, mine);
            source[n] += 8 * stride;
        }
}

}  // namespace msa::cuda
