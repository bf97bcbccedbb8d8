// SPDX-License-Identifier: MIT
// The probabilities of block_mass from its log-sums. A thread block per (query, group) computes the
// log-sum of each row over all its blocks, then each block's probability, mean over the heads.
#include "gpu/device/exp2.cuh"
#include "gpu/device/seen_keys.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/kernels/block_mass_sm90.h"

namespace msa::cuda {
namespace {

/// mass[b] = mean over the heads of 2^(lse of b - lse of the row).
__global__ void normalise(const BlockMassArgs args) {
    extern __shared__ float row_lse[];  // [G]
    const int64_t query = blockIdx.x;
    const int group = static_cast<int>(blockIdx.y);
    const int heads = args.query_heads / args.groups;
    const int seen = seen_keys(args.visible, args.first_query + query);
    const int visible = (seen + args.block_size - 1) / args.block_size;
    const float* const lse =
        args.block_lse + (query * args.query_heads + group * heads) * int64_t{args.blocks};
    const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
    for (int head = warp; head < heads; head += static_cast<int>(blockDim.x) / kWarp) {
        const float* const of_head = lse + int64_t{head} * args.blocks;
        float best = -INFINITY, total = 0;
        for (int b = lane; b < visible; b += kWarp) best = fmaxf(best, of_head[b]);
        best = warp_max(best);
        for (int b = lane; b < visible; b += kWarp) total += exp2_fast(of_head[b] - best);
        total = warp_sum(total);
        if (lane == 0) row_lse[head] = best + log2f(total);
    }
    __syncthreads();
    float* const mass = args.mass + (query * args.groups + group) * int64_t{args.blocks};
    for (int b = static_cast<int>(threadIdx.x); b < args.blocks;
         b += static_cast<int>(blockDim.x)) {
        float sum = 0;
        if (b < visible)
            for (int head = 0; head < heads; ++head)
                sum += exp2_fast(lse[int64_t{head} * args.blocks + b] - row_lse[head]);
        mass[b] = sum / static_cast<float>(heads);
    }
}

}  // namespace

cudaError_t launch_block_mass_normalise(const BlockMassArgs& args, cudaStream_t stream) {
    const auto heads = static_cast<unsigned>(args.query_heads / args.groups);
    normalise<<<dim3(static_cast<unsigned>(args.queries), static_cast<unsigned>(args.groups)), 256,
                heads * sizeof(float), stream>>>(args);
    return cudaGetLastError();
}

}  // namespace msa::cuda
