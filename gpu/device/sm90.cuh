// SPDX-License-Identifier: MIT
// Hopper's instructions by name: barriers in shared memory, bulk tensor copies, warpgroup matrix
// products. Source: PTX ISA 8.0 and later, sections mbarrier, cp.async.bulk.tensor, wgmma.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "gpu/device/early.cuh"

namespace msa::cuda::sm90 {

constexpr int kWarpgroup = 128;
constexpr int kMostSharedBytes = 227 << 10;  // of a thread block
constexpr int kRegistersOfSm = 1 << 16;

/// Registers that a launch gives to one thread of every warpgroup, added up. If the warpgroups ask
/// for more in all, setmaxnreg.inc waits forever.
constexpr int launch_registers(int threads, int blocks_of_sm) {
    return kRegistersOfSm / (threads * blocks_of_sm) / 8 * 8 * (threads / kWarpgroup);
}

__device__ inline uint32_t shared_address(const void* pointer) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

/// A barrier that counts arrivals and bytes; its phase flips when both are complete.
struct Barrier {
    uint64_t word;

    __device__ void init(uint32_t arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(this)),
                     "r"(arrivals));
    }
    __device__ void arrive() {
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(this))
                     : "memory");
    }
    __device__ void expect(uint32_t bytes) {
        asm volatile(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(this)),
            "r"(bytes)
            : "memory");
    }
    /// Returns once the phase of this parity is complete.
    __device__ void wait(uint32_t parity) {
        asm volatile(
            "{\n"
            ".reg .pred done;\n"
            "again:\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
            "@!done bra again;\n"
            "}\n" ::"r"(shared_address(this)),
            "r"(parity)
            : "memory");
    }
};

/// Makes initialised barriers visible to the TMA unit.
__device__ inline void fence_barriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Makes ordinary writes to shared memory before it visible to matrix products and bulk copies
/// after it.
__device__ inline void fence_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Whether this lane is the one that the warp, all of whose lanes are here, elects. The compiler
/// knows that it is only one: bulk copies behind it need no loop over lanes.
__device__ inline bool elect_one() {
    uint32_t elected;
    asm volatile(
        "{\n"
        ".reg .pred one;\n"
        "elect.sync _|one, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, one;\n"
        "}\n"
        : "=r"(elected));
    return elected != 0;
}

/// How long L2 should keep what a bulk copy reads.
enum class Keep : uint64_t {
    normal = 0x1000000000000000,
    shortest = 0x12F0000000000000,
    longest = 0x14F0000000000000
};

/// Copies the box of a 2-d tensor map at (column, row) to shared memory; rows out of bounds become
/// 0.
__device__ inline void copy_box(void* to, const CUtensorMap* map, int column, int row,
                                Barrier* barrier, Keep keep = Keep::normal) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row),
        "l"(static_cast<uint64_t>(keep))
        : "memory");
}

/// The same for a 3-d tensor map at (column, row, plane).
__device__ inline void copy_box(void* to, const CUtensorMap* map, int column, int row, int plane,
                                Barrier* barrier, Keep keep = Keep::normal) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(to)),
        "l"(map), "r"(shared_address(barrier)), "r"(column), "r"(row), "r"(plane),
        "l"(static_cast<uint64_t>(keep))
        : "memory");
}

/// Copies `bytes` bytes, a multiple of 16, from an aligned address.
__device__ inline void copy_bytes(void* to, const void* from, uint32_t bytes, Barrier* barrier,
                                  Keep keep) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(static_cast<uint64_t>(keep))
        : "memory");
}

/// Prefetches a tensor map, so that the first copy does not wait for it.
__device__ inline void prefetch_map(const CUtensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// The address in the cluster at which thread block `rank` has what this one has at `pointer`.
__device__ inline uint32_t address_in_cluster(const void* pointer, int rank) {
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(address)
        : "r"(shared_address(pointer)), "r"(rank));
    return address;
}
/// Writes to another thread block's shared memory, whose barrier counts the bytes. `to` and
/// `barrier` are results of address_in_cluster().
__device__ inline void send(uint32_t to, float4 x, uint32_t barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(to),
        "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(barrier)
        : "memory");
}
__device__ inline void send(uint32_t to, float2 x, uint32_t barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
            to),
        "f"(x.x), "f"(x.y), "r"(barrier)
        : "memory");
}

template <int Registers>
__device__ inline void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers));
}
template <int Registers>
__device__ inline void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers));
}

// Matrix products of a warpgroup: sum [64, N] += A [64, K] B [K, N], K = 16 for bf16.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int Pending>
__device__ inline void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}

}  // namespace msa::cuda::sm90
