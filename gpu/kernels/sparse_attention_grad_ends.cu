// SPDX-License-Identifier: MIT
// What comes before and after the products, all of it bound by memory: delta = <out, d_out> per
// (query, head); a query's slots added to d_q; the parts of split blocks added in order; d_k and
// d_v scaled, and rounded where bf16 is asked for.
#include "gpu/device/grad_slots_sm90.cuh"
#include "gpu/kernels/sparse_attention_grad_sm90.h"

namespace msa::cuda {
namespace {

using namespace sm90;

constexpr int kThreads = 256;

unsigned blocks_for(int64_t work) {
    return static_cast<unsigned>((work + kThreads - 1) / kThreads);
}

__device__ float2 two(uint32_t word) {
    return __bfloat1622float2(reinterpret_cast<const __nv_bfloat162&>(word));
}

/// Dim / 8 threads per row.
template <int Dim>
__global__ void __launch_bounds__(kThreads)
    prepare(const uint4* out, const uint4* d_out, const float* lse, int64_t rows, float* to_lse,
            float* to_delta) {
    constexpr int kEach = Dim / 8;
    const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x, row = at / kEach;
    float sum = 0;
    if (row < rows) {
        const uint4 a = __ldcs(out + at), b = __ldcs(d_out + at);
        const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int n = 0; n < 4; ++n) {
            const float2 p = two(x[n]), q = two(y[n]);
            sum = fmaf(p.x, q.x, fmaf(p.y, q.y, sum));
        }
    }
#pragma unroll
    for (int step = kEach / 2; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (at % kEach != 0 || row > rows) return;
    float known = row < rows ? lse[row] : -INFINITY;
    if (sum != sum) known = sum;  // one NaN makes the row's whole part NaN
    to_lse[row] = known == -INFINITY ? INFINITY : known * kLog2E;
    to_delta[row] = sum;
}

/// A thread per 16 bytes of d_q.
template <int Dim>
__global__ void __launch_bounds__(kThreads)
    add_all_slots(const __grid_constant__ SparseGradArgs args) {
    const int pair_chunks = args.group_size * (Dim / 8);
    const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    const auto pair = static_cast<int>(thread / pair_chunks);
    const auto chunk = static_cast<int>(thread % pair_chunks);
    const QueryTile last = args.tiles[args.tile_count - 1];
    const FullSlots full{args.tiles[0].query, last.query + last.queries,
                         static_cast<const uint4*>(args.workspace.slots)};
    const bool wanted = full.first + pair / args.groups < full.end;
    add_slots<Dim>(args, full, pair, wanted ? slots_of(args, full, pair) : 0, chunk, wanted);
}

/// A thread per 4 floats of a split block, thread blocks in turn.
template <int Dim>
__global__ void __launch_bounds__(kThreads) add_parts(const __grid_constant__ SparseGradArgs args) {
    // Of d_k, and as many of d_v.
    const int side_chunks = sparse_grad_tile_keys(args.block_size) * Dim / 4;
    const int pieces = 2 * side_chunks / kThreads;
    const int work = args.workspace.counts[1] * pieces;
    for (int i = static_cast<int>(blockIdx.x); i < work; i += static_cast<int>(gridDim.x)) {
        const GradSplit split = args.workspace.splits[i / pieces];
        const int chunk = i % pieces * kThreads + static_cast<int>(threadIdx.x);
        const auto* const from = reinterpret_cast<const float4*>(args.workspace.parts) +
                                 int64_t{split.part} * 2 * side_chunks + chunk;
        float4 sum{};
#pragma unroll 4
        for (int n = 0; n < split.parts; ++n) {
            const float4 x = from[int64_t{n} * 2 * side_chunks];
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
        const SequenceBlock block = args.key_blocks[split.block];
        const int in_side = chunk % side_chunks, key = in_side / (Dim / 4);
        if (key >= block.keys) continue;
        float* const side = chunk < side_chunks ? args.workspace.d_k : args.workspace.d_v;
        auto* const to = reinterpret_cast<float4*>(
                             side + (int64_t{block.key + key} * args.groups + split.group) * Dim) +
                         in_side % (Dim / 4);
        float4 old = *to;
        old.x += sum.x, old.y += sum.y, old.z += sum.z, old.w += sum.w;
        *to = old;
    }
}

/// A thread block per block of keys, of d_k and then of d_v; threads take 8 elements at a time.
__global__ void __launch_bounds__(kThreads)
    finish_keys(const __grid_constant__ SparseGradArgs args) {
    const bool is_k = blockIdx.y == 0;
    const SequenceBlock block = args.key_blocks[blockIdx.x];
    const int row = args.groups * args.head_dim / 8, count = block.keys * row;
    const bool is_float = is_k ? args.d_k_is_float : args.d_v_is_float;
    const auto* const from =
        reinterpret_cast<const float4*>(is_k ? args.workspace.d_k : args.workspace.d_v);
    void* const to = is_k ? args.d_k : args.d_v;
    const float factor = is_k ? args.scale : 1;
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
        const int64_t at = block.key * row + i;
        float4 a = __ldcs(from + 2 * at), b = __ldcs(from + 2 * at + 1);
        a.x *= factor, a.y *= factor, a.z *= factor, a.w *= factor;
        b.x *= factor, b.y *= factor, b.z *= factor, b.w *= factor;
        if (a.x != a.x || a.y != a.y || a.z != a.z || a.w != a.w || b.x != b.x || b.y != b.y ||
            b.z != b.z || b.w != b.w)
            args.marked_blocks[int64_t{blockIdx.x} * args.groups + i % row / (args.head_dim / 8)] =
                1;
        if (is_float) {
            static_cast<float4*>(to)[2 * at] = a;
            static_cast<float4*>(to)[2 * at + 1] = b;
        } else {
            static_cast<uint4*>(to)[at] =
                make_uint4(pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w));
        }
    }
}

}  // namespace

cudaError_t launch_grad_prepare(const SparseGradArgs& args, cudaStream_t stream) {
    const int64_t rows = args.queries * args.query_heads;
    const auto launch = [&](auto* kernel) {
        kernel<<<blocks_for((rows + 1) * args.head_dim / 8), kThreads, 0, stream>>>(
            static_cast<const uint4*>(args.out), static_cast<const uint4*>(args.d_out), args.lse,
            rows, args.workspace.lse, args.workspace.delta);
    };
    launch(args.head_dim == 128 ? prepare<128> : prepare<64>);
    const size_t bytes = sizeof(float) * static_cast<size_t>(args.keys) *
                         static_cast<size_t>(args.groups) * static_cast<size_t>(args.head_dim);
    cudaError_t error = cudaMemsetAsync(args.workspace.d_k, 0, bytes, stream);
    if (error == cudaSuccess) error = cudaMemsetAsync(args.workspace.d_v, 0, bytes, stream);
    return error == cudaSuccess ? cudaGetLastError() : error;
}

cudaError_t launch_grad_slots(const SparseGradArgs& args, cudaStream_t stream) {
    const int64_t chunks =
        int64_t{args.tile_count} * kGradTileQueries * args.query_heads * args.head_dim / 8;
    auto* const kernel = args.head_dim == 128 ? add_all_slots<128> : add_all_slots<64>;
    kernel<<<blocks_for(chunks), kThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

cudaError_t launch_grad_parts(const SparseGradArgs& args, int sms, cudaStream_t stream) {
    auto* const kernel = args.head_dim == 128 ? add_parts<128> : add_parts<64>;
    kernel<<<static_cast<unsigned>(4 * sms), kThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

cudaError_t launch_grad_finish(const SparseGradArgs& args, cudaStream_t stream) {
    finish_keys<<<dim3(static_cast<unsigned>(args.all_blocks), 2), kThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace msa::cuda
