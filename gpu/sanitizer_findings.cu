// SPDX-License-Identifier: MIT
// What compute-sanitizer says of the tuned kernels, reproduced in a few lines that share nothing
// with them. Both kernels are right, and their results are checked.
//   hand_over   racecheck: a warp writes a table to shared memory and another reads it, each after
//   an
//               arrival at an mbarrier, which has release and acquire semantics
//   copy_rows   initcheck: a bulk copy takes whole runs of rows; the last row was never written,
//   and
//               nobody reads its copy
// gpu/check.sh --sanitizers builds and runs it:
//   nvcc -arch=sm_90a gpu/sanitizer_findings.cu -o findings
//   compute-sanitizer --tool racecheck findings; compute-sanitizer --tool initcheck findings
#include <cstdint>
#include <cstdio>

__device__ uint32_t address_of(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ void init(uint64_t* barrier) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address_of(barrier)) : "memory");
}
__device__ void arrive(uint64_t* barrier, uint32_t bytes = 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(address_of(barrier)),
                 "r"(bytes)
                 : "memory");
}
__device__ void wait(uint64_t* barrier, uint32_t parity) {
    asm volatile(
        "{ .reg .pred done; again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
        "@!done bra again; }" ::"r"(address_of(barrier)),
        "r"(parity)
        : "memory");
}

/// Two warps; 8 tables of 32 numbers go from one to the other.
__global__ void hand_over(int* sum) {
    __shared__ int table[32];
    __shared__ uint64_t full, empty;
    if (threadIdx.x == 0) init(&full), init(&empty);
    __syncthreads();
    const unsigned lane = threadIdx.x % 32;
    for (uint32_t n = 0; n < 8; ++n) {
        if (threadIdx.x < 32) {
            wait(&empty, n % 2 ^ 1);
            table[lane] = static_cast<int>(n);
            __syncwarp();
            if (lane == 0) arrive(&full);
        } else {
            wait(&full, n % 2);
            sum[lane] += table[31 - lane];
            __syncwarp();
            if (lane == 0) arrive(&empty);
        }
    }
}

__global__ void write_rows(int* rows) { rows[threadIdx.x] = static_cast<int>(threadIdx.x); }
/// One warp; a run of 8 rows of 4 numbers, of which 7 were written.
__global__ void copy_rows(const int* rows, int* sum) {
    __shared__ alignas(16) int copy[8][4];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        init(&full);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        arrive(&full, sizeof copy);
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
            "[%3];" ::"r"(address_of(copy)),
            "l"(rows), "r"(static_cast<uint32_t>(sizeof copy)), "r"(address_of(&full))
            : "memory");
    }
    __syncwarp();
    wait(&full, 0);
    if (threadIdx.x < 28) sum[threadIdx.x] = copy[threadIdx.x / 4][threadIdx.x % 4];
}

int main() {
    int *rows = nullptr, *sum = nullptr, host[32];
    bool right = true;
    if (cudaMalloc(&rows, 8 * 16) != cudaSuccess || cudaMalloc(&sum, sizeof host) != cudaSuccess)
        return 1;
    cudaMemset(sum, 0, sizeof host);
    hand_over<<<1, 64>>>(sum);
    cudaMemcpy(host, sum, sizeof host, cudaMemcpyDeviceToHost);
    for (int x : host) right &= x == 28;
    write_rows<<<1, 28>>>(rows);
    copy_rows<<<1, 32>>>(rows, sum);
    if (cudaMemcpy(host, sum, 28 * sizeof(int), cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
    for (int i = 0; i < 28; ++i) right &= host[i] == i;
    std::printf("%s\n", right ? "both results are right" : "a result is WRONG");
    return right ? 0 : 1;
}
