// SPDX-License-Identifier: MIT
#include "core/problem.h"
#include "gpu/kernels/resize_rows.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = 256, kEach = 4;  // of a thread block; rows of a thread, read at once

/// A thread per chunk of the result, side by side as the chunks are.
__global__ void __launch_bounds__(kThreads) resize_rows(ResizeRowsArgs a) {
    const int chunk = static_cast<int>(threadIdx.x);
    const int64_t first = int64_t{blockIdx.x} * blockDim.y * kEach + threadIdx.y;
    uint4 here[kEach];
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
        const int64_t row = first + n * static_cast<int>(blockDim.y);
        here[n] =
            row < a.rows && chunk < a.from_chunks ? a.from[row * a.from_chunks + chunk] : uint4{};
    }
#pragma unroll
    for (int n = 0; n < kEach; ++n) {
        const int64_t row = first + n * static_cast<int>(blockDim.y);
        if (row >= a.rows) return;
        a.to[row * a.to_chunks + chunk] = here[n];
        if (a.marked == nullptr || chunk != 0 || row % a.heads != 0) continue;
        bool any = false;
        for (int head = 0; head < a.heads; ++head) any |= isnan(a.lse[row + head]);
        a.marked[row / a.heads] = any ? 1 : 0;
    }
}

}  // namespace

cudaError_t launch_resize_rows(const ResizeRowsArgs& args, cudaStream_t stream) {
    if (args.rows == 0) return cudaSuccess;
    const dim3 threads(static_cast<unsigned>(args.to_chunks),
                       static_cast<unsigned>(kThreads / args.to_chunks));
    const auto blocks =
        static_cast<unsigned>(ceil_div(args.rows, int64_t{kEach} * int64_t{threads.y}));
    resize_rows<<<blocks, threads, 0, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace msa::cuda
