// SPDX-License-Identifier: MIT
// What racecheck of compute-sanitizer says of tables that the tuned kernels hand from warp to warp,
// reproduced in a few lines that share nothing with them: a warp writes a table to shared memory
// and another reads it, each after an arrival at an mbarrier, which has release and acquire
// semantics. The result is checked. gpu/check.sh --sanitizers builds and runs it:
//   nvcc -arch=sm_90 gpu/sanitizer_findings.cu -o findings
//   compute-sanitizer --tool racecheck findings
#include <cstdint>
#include <cstdio>

__device__ uint32_t address_of(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ void init(uint64_t* barrier) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(address_of(barrier)) : "memory");
}
__device__ void arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 0;" ::"r"(address_of(barrier))
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

int main() {
    int *sum = nullptr, host[32];
    if (cudaMalloc(&sum, sizeof host) != cudaSuccess) return 1;
    cudaMemset(sum, 0, sizeof host);
    hand_over<<<1, 64>>>(sum);
    if (cudaMemcpy(host, sum, sizeof host, cudaMemcpyDeviceToHost) != cudaSuccess) return 1;
    bool right = true;
    for (int x : host) right &= x == 28;
    std::printf("the result is %s\n", right ? "right" : "WRONG");
    return right ? 0 : 1;
}
