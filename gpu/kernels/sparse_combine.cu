// SPDX-License-Identifier: MIT
// The second phase of KV-outer: a query's slots, and what its union tile gave, weighted by their
// shares of the softmax denominator. Reads each used slot once; queries without one are not
// touched.
#include <cuda_bf16.h>

#include "gpu/kernels/sparse_attention_sm90.h"

namespace msa::cuda {
namespace {

constexpr float kLog2E = 1.44269504F, kLn2 = 0.693147181F;
constexpr int kThreads = 128;

__device__ void add(float (&sum)[8], uint4 eight, float weight) {
    const auto* const pairs = reinterpret_cast<const __nv_bfloat162*>(&eight);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 two = __bfloat1622float2(pairs[i]);
        sum[2 * i] = fmaf(weight, two.x, sum[2 * i]);
        sum[2 * i + 1] = fmaf(weight, two.y, sum[2 * i + 1]);
    }
}

/// 128 threads per (query, group); Dim / 8 of them share a head, 8 channels each.
template <int Dim>
__device__ void combine_row(const SparseArgs& args, int64_t row, int thread) {
    const IdSplit split = args.workspace.splits[row];
    if (split.uses == 0) return;
    const int slots = __popc(split.uses);
    constexpr int kPerHead = Dim / 8;
    const int heads = args.group_size();
    const int64_t query = args.first_query + row / args.groups;
    const int group = static_cast<int>(row % args.groups);
    const auto* const partial =
        static_cast<const uint4*>(args.workspace.partial_out) + row * args.top_k * heads * kPerHead;
    const float* const partial_lse = args.workspace.partial_lse + row * args.top_k * heads;
    for (int head = thread / kPerHead; head < heads; head += kThreads / kPerHead) {
        const int channel = thread % kPerHead;
        const int64_t out_row = query * args.query_heads + group * heads + head;
        uint4* const out = static_cast<uint4*>(args.out) + out_row * kPerHead + channel;
        const float union_lse = split.in_union != 0 ? args.lse[out_row] * kLog2E : -INFINITY;
        float best = union_lse;
        for (int s = 0; s < slots; ++s) best = fmaxf(best, partial_lse[s * heads + head]);
        float sum[8] = {}, total = exp2f(union_lse - best);
        if (total > 0) add(sum, *out, total);
#pragma unroll 8
        for (int s = 0; s < slots; ++s) {
            const float weight = exp2f(partial_lse[s * heads + head] - best);
            total += weight;
            add(sum, __ldcs(partial + (s * heads + head) * kPerHead + channel), weight);
        }
        uint4 eight;
        auto* const pairs = reinterpret_cast<__nv_bfloat162*>(&eight);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            pairs[i] = __floats2bfloat162_rn(sum[2 * i] / total, sum[2 * i + 1] / total);
        float all = 0;
#pragma unroll
        for (const float x : sum) all += x;
        if (isnan(all / total)) args.workspace.marked[row] = 1;
        __syncwarp();
        *out = eight;
        if (channel == 0) args.lse[out_row] = (best + log2f(total)) * kLn2;
    }
}

template <int Dim, int Threads>
__global__ void __launch_bounds__(Threads) combine(const __grid_constant__ SparseArgs args) {
    constexpr int kRows = Threads / kThreads;
    const int thread = static_cast<int>(threadIdx.x);
    for (int64_t row = int64_t{blockIdx.x} * kRows + thread / kThreads;
         row < args.queries * args.groups; row += int64_t{gridDim.x} * kRows)
        combine_row<Dim>(args, row, thread % kThreads);
}

template <int Threads>
cudaError_t launch(const SparseArgs& args, int64_t blocks, cudaStream_t stream) {
    auto* const kernel = args.head_dim == 128 ? combine<128, Threads> : combine<64, Threads>;
    kernel<<<static_cast<unsigned>(blocks), Threads, 0, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace

cudaError_t launch_sparse_combine(const SparseArgs& args, cudaStream_t stream) {
    return launch<kThreads>(args, args.queries * args.groups, stream);
}

cudaError_t launch_sparse_combine(const SparseArgs& args, int processors, cudaStream_t stream) {
    return launch<1024>(args, processors, stream);  // no two of them fit into one processor
}

}  // namespace msa::cuda
