// SPDX-License-Identifier: MIT
// What compute-sanitizer says of the tuned kernels, reproduced in a few lines that share nothing
// with them. The results are checked. gpu/check.sh --sanitizers builds and runs them:
//   nvcc -arch=sm_90 gpu/sanitizer_findings.cu -o findings
//   compute-sanitizer --tool racecheck findings
//   compute-sanitizer --tool initcheck findings
//
// racecheck: a warp writes a table to shared memory and another reads it, each after an arrival at
// an mbarrier, which has release and acquire semantics.
// initcheck: a bulk copy of 8 rows whose first one nobody has written, and nobody uses. It says
// nothing where another row is the one that is not written.
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

constexpr int kRows = 8, kRowBytes = 128;

__global__ void write_rows_but_the_first(int* rows) {
    rows[(blockIdx.x + 1) * 32 + threadIdx.x] = 4;
}
/// A warp copies all rows at once and adds up those that were written.
__global__ void copy_rows(const int* rows, int* sum) {
    __shared__ __align__(128) int copied[kRows][32];
    __shared__ uint64_t full;
    if (threadIdx.x == 0) {
        init(&full);
        arrive(&full, sizeof copied);
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
            "[%3];" ::"r"(address_of(copied)),
            "l"(rows), "n"(kRows * kRowBytes), "r"(address_of(&full))
            : "memory");
    }
    __syncthreads();
    wait(&full, 0);
    sum[threadIdx.x] = 0;
    for (int row = 1; row < kRows; ++row) sum[threadIdx.x] += copied[row][threadIdx.x];
}

/// Is each of the 32 sums 28?
bool right(const int* sum) {
    int host[32];
    if (cudaMemcpy(host, sum, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess) return false;
    for (int x : host)
        if (x != 28) return false;
    return true;
}

int main() {
    int *sum = nullptr, *rows = nullptr;
    if (cudaMalloc(&sum, kRowBytes) != cudaSuccess) return 1;
    if (cudaMalloc(&rows, kRows * kRowBytes) != cudaSuccess) return 1;
    cudaMemset(sum, 0, kRowBytes);
    hand_over<<<1, 64>>>(sum);
    bool all = right(sum);
    write_rows_but_the_first<<<kRows - 1, 32>>>(rows);
    copy_rows<<<1, 32>>>(rows, sum);
    all &= right(sum);
    std::printf("the results are %s\n", all ? "right" : "WRONG");
    return all ? 0 : 1;
}
