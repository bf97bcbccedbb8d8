// SPDX-License-Identifier: MIT
// The second phase of KV-outer: a query's slots, and what its union tile gave, weighted by their
// shares of the softmax denominator. Reads each used slot once; queries without one are not
// touched.
#include <cuda_bf16.h>

#include <algorithm>

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

/// A block per (query, group); Dim / 8 threads share a head, 8 channels each.
template <int Dim>
__global__ void __launch_bounds__(kThreads) combine(const __grid_constant__ SparseArgs args) {
    const int64_t row = blockIdx.x;  // (query, group) of the chunk
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
    for (int head = static_cast<int>(threadIdx.x) / kPerHead; head < heads;
         head += kThreads / kPerHead) {
        const int channel = static_cast<int>(threadIdx.x) % kPerHead;
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

}  // namespace

cudaError_t launch_sparse_combine(const SparseArgs& args, cudaStream_t stream) {
    const auto grid = static_cast<unsigned>(args.queries * args.groups);
    if (args.head_dim == 128)
        combine<128><<<grid, kThreads, 0, stream>>>(args);
    else
        combine<64><<<grid, kThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

cudaError_t launch_sparse_attention_sm90(const SparseArgs& args, int processors,
                                         cudaStream_t stream) {
    cudaError_t error = launch_sparse_schedule(args, stream);
    if (error == cudaSuccess) error = launch_sparse_union_sm90(args, processors, stream);
    if (error != cudaSuccess || !args.any_slots()) return error;
    error = launch_sparse_kv_outer_sm90(args, processors, stream);
    return error == cudaSuccess ? launch_sparse_combine(args, stream) : error;
}

}  // namespace msa::cuda
