// SPDX-License-Identifier: MIT
// The kernels before and after the products, all bound by memory. Before: delta = <out, d_out> per
// (query, head) and, in f16, the unit. After: a query's slots are added to d_q, the parts of split
// blocks are added in order, d_k and d_v are scaled, and rounded if T is requested.
//
// f16 has no values above 65504 and few below 2^-14. So P, dS and slots are multiplied by the unit,
// a power of two, at most 2^15. It is chosen so that their bound, 2 max |d_out| max |v|
// max(1, max |k|), stays in range. The unit is part of lse, so it costs no instruction beside the
// products. If even the unit 1 is too large, a result may become infinite. Such a result is
// computed again in float, as is one with a NaN.
#include "gpu/device/grad_slots_sm90.cuh"
#include "gpu/kernels/kernel_elements.h"
#include "gpu/kernels/sparse_attention_grad_stages.h"

namespace msa::cuda {
namespace {

using namespace sm90;

constexpr int kThreads = 256;
// log2 of the largest unit: P is at most 1, and half of what f16 holds is left.
constexpr int kMostGradUnit = 15;

unsigned blocks_for(int64_t work) {
    return static_cast<unsigned>((work + kThreads - 1) / kThreads);
}

/// One of three kernels.
template <typename Kernel>
Kernel* of_width(int head_dim, Kernel* of_64, Kernel* of_128, Kernel* of_256) {
    return head_dim == 64 ? of_64 : head_dim == 128 ? of_128 : of_256;
}

constexpr int kRangeBlocks = 512;  // of a tensor
constexpr int kPartBlocks = 6;     // thread blocks of an SM that add parts

/// <a, b> of eight values.
template <typename T>
__device__ float product(uint4 a, uint4 b) {
    const uint32_t x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
    float sum = 0;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
        const float2 p = unpack<T>(x[n]), q = unpack<T>(y[n]);
        sum = fmaf(p.x, q.x, fmaf(p.y, q.y, sum));
    }
    return sum;
}
/// Sum over the Dim / 8 threads of a row.
template <int Dim>
__device__ float sum_of_row(float x) {
#pragma unroll
    for (int step = Dim / 16; step > 0; step /= 2) x += __shfl_xor_sync(kAllLanes, x, step);
    return x;
}

/// GradWorkspace::largest, a tensor per blockIdx.y, Dim / 8 threads per row; rows that are not
/// finite do not count.
template <typename T, int Dim>
__global__ void __launch_bounds__(kThreads)
    find_largest(const __grid_constant__ SparseGradArgs args) {
    const bool is_d_out = blockIdx.y == 0;
    const auto* const from = static_cast<const uint4*>(is_d_out          ? args.d_out
                                                       : blockIdx.y == 1 ? args.all_v
                                                                         : args.all_k);
    const int64_t rows =
        is_d_out ? args.queries * args.query_heads : args.keys * int64_t{args.groups};
    const int64_t count = rows * (Dim / 8);
    float most = 0;
    for (int64_t first = int64_t{blockIdx.x} * kThreads; first < count;
         first += int64_t{gridDim.x} * kThreads) {
        const int64_t at = first + threadIdx.x;
        const uint4 x = at < count ? __ldcs(from + at) : uint4{};
        const float square = sum_of_row<Dim>(product<T>(x, x));
        if (isfinite(square)) most = fmaxf(most, square);
    }
    const uint32_t of_warp = __reduce_max_sync(kAllLanes, __float_as_uint(most));
    if (threadIdx.x % kWarp == 0) atomicMax(args.workspace.largest + blockIdx.y, of_warp);
}

/// GradWorkspace::unit: dS is at most 2 |d_out| |v|, and its product with K as much times |k|.
__global__ void choose_unit(const uint32_t* largest, float* unit) {
    const auto norm = [&](int n) { return sqrtf(__uint_as_float(largest[n])); };
    const float bound = 2 * norm(0) * norm(1) * fmaxf(1, norm(2));
    const int above = bound > 0 ? ilogbf(bound) + 1 : 0;  // bound < 2^above
    const int exponent = min(max(kMostGradUnit - above, 0), kMostGradUnit);
    unit[0] = static_cast<float>(exponent);
    unit[1] = ldexpf(1, -exponent);
}

/// Dim / 8 threads per row.
template <typename T, int Dim>
__global__ void __launch_bounds__(kThreads)
    prepare(const uint4* out, const uint4* d_out, const float* lse, int64_t rows, const float* unit,
            float* to_lse, float* to_delta) {
    constexpr int kEach = Dim / 8;
    const int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x, row = at / kEach;
    const float sum =
        sum_of_row<Dim>(row < rows ? product<T>(__ldcs(out + at), __ldcs(d_out + at)) : 0);
    if (at % kEach != 0 || row > rows) return;
    float known = row < rows ? lse[row] : -INFINITY;
    if (sum != sum) known = sum;  // one NaN makes the row's whole part NaN
    float shift = 0;              // in the exponent of P
    if constexpr (kIsHalf<T>) shift = unit[0];
    to_lse[row] = known == -INFINITY ? INFINITY : known * kLog2E - shift;
    to_delta[row] = sum;
}

/// A thread per 16 bytes of d_q.
template <typename T, int Dim>
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
    add_slots<T, Dim>(args, full, pair, wanted ? slots_of(args, full, pair) : 0, chunk, wanted);
}

/// A thread per 4 floats of a split block, thread blocks in turn.
template <int Dim>
__global__ void __launch_bounds__(kThreads, kPartBlocks)
    add_parts(const __grid_constant__ SparseGradArgs args) {
    // Of d_k, and as many of d_v.
    const int side_chunks = sparse_grad_tile_keys(args.block_size) * Dim / 4;
    const int pieces = 2 * side_chunks / kThreads;
    const int work = args.workspace.counts->splits * pieces;
    for (int i = static_cast<int>(blockIdx.x); i < work; i += static_cast<int>(gridDim.x)) {
        const GradSplit split = args.workspace.splits[i / pieces];
        const SequenceBlock block = args.key_blocks[split.block];
        const int chunk = i % pieces * kThreads + static_cast<int>(threadIdx.x);
        const int in_side = chunk % side_chunks, key = in_side / (Dim / 4);
        if (key >= block.keys) continue;
        float* const side = chunk < side_chunks ? args.workspace.d_k : args.workspace.d_v;
        auto* const to = reinterpret_cast<float4*>(
                             side + (int64_t{block.key + key} * args.groups + split.group) * Dim) +
                         in_side % (Dim / 4);
        float4 old = *to;
        const auto* const from = reinterpret_cast<const float4*>(args.workspace.parts) +
                                 int64_t{split.part} * 2 * side_chunks + chunk;
        float4 sum{};
#pragma unroll 4
        for (int n = 0; n < split.parts; ++n) {
            const float4 x = __ldcs(from + int64_t{n} * 2 * side_chunks);
            sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
        }
        old.x += sum.x, old.y += sum.y, old.z += sum.z, old.w += sum.w;
        *to = old;
    }
}

/// A thread block per block of keys, of d_k and then of d_v; threads take 8 elements at a time.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    finish_keys(const __grid_constant__ SparseGradArgs args) {
    const bool is_k = blockIdx.y == 0;
    const SequenceBlock block = args.key_blocks[blockIdx.x];
    const int row = args.groups * args.head_dim / 8, count = block.keys * row;
    const bool is_float = is_k ? args.d_k_is_float : args.d_v_is_float;
    const auto* const from =
        reinterpret_cast<const float4*>(is_k ? args.workspace.d_k : args.workspace.d_v);
    void* const to = is_k ? args.d_k : args.d_v;
    const float factor = (is_k ? args.scale : 1) * inverse_unit<T>(args);
    for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
        const int64_t at = block.key * row + i;
        float4 a = __ldcs(from + 2 * at), b = __ldcs(from + 2 * at + 1);
        a.x *= factor, a.y *= factor, a.z *= factor, a.w *= factor;
        b.x *= factor, b.y *= factor, b.z *= factor, b.w *= factor;
        bool lost = false;
        for (const float x : {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}) lost |= is_lost<T>(x);
        if (lost)
            args.marked_blocks[int64_t{blockIdx.x} * args.groups + i % row / (args.head_dim / 8)] =
                1;
        if (is_float) {
            static_cast<float4*>(to)[2 * at] = a;
            static_cast<float4*>(to)[2 * at + 1] = b;
        } else {
            static_cast<uint4*>(to)[at] = make_uint4(pack<T>(a.x, a.y), pack<T>(a.z, a.w),
                                                     pack<T>(b.x, b.y), pack<T>(b.z, b.w));
        }
    }
}

}  // namespace

template <typename T>
cudaError_t launch_grad_prepare(const SparseGradArgs& args, cudaStream_t stream) {
    const int64_t rows = args.queries * args.query_heads;
    const GradWorkspace& work = args.workspace;
    cudaError_t error = cudaSuccess;
    if constexpr (kIsHalf<T>) {
        error = cudaMemsetAsync(work.largest, 0, 3 * sizeof(uint32_t), stream);
        if (error != cudaSuccess) return error;
        auto* const kernel = of_width(args.head_dim, find_largest<T, 64>, find_largest<T, 128>,
                                      find_largest<T, 256>);
        kernel<<<dim3(kRangeBlocks, 3), kThreads, 0, stream>>>(args);
        choose_unit<<<1, 1, 0, stream>>>(work.largest, work.unit);
    }
    const auto launch = [&](auto* kernel) {
        kernel<<<blocks_for((rows + 1) * args.head_dim / 8), kThreads, 0, stream>>>(
            static_cast<const uint4*>(args.out), static_cast<const uint4*>(args.d_out), args.lse,
            rows, work.unit, work.lse, work.delta);
    };
    launch(of_width(args.head_dim, prepare<T, 64>, prepare<T, 128>, prepare<T, 256>));
    const size_t bytes = sizeof(float) * static_cast<size_t>(args.keys) *
                         static_cast<size_t>(args.groups) * static_cast<size_t>(args.head_dim);
    error = cudaMemsetAsync(work.d_k, 0, bytes, stream);
    if (error == cudaSuccess) error = cudaMemsetAsync(work.d_v, 0, bytes, stream);
    return error == cudaSuccess ? cudaGetLastError() : error;
}

template <typename T>
cudaError_t launch_grad_slots(const SparseGradArgs& args, cudaStream_t stream) {
    const int64_t chunks =
        int64_t{args.tile_count} * kGradTileQueries * args.query_heads * args.head_dim / 8;
    auto* const kernel =
        of_width(args.head_dim, add_all_slots<T, 64>, add_all_slots<T, 128>, add_all_slots<T, 256>);
    kernel<<<blocks_for(chunks), kThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

template <typename T>
cudaError_t launch_grad_parts(const SparseGradArgs& args, int sms, cudaStream_t stream) {
    auto* const kernel = of_width(args.head_dim, add_parts<64>, add_parts<128>, add_parts<256>);
    kernel<<<static_cast<unsigned>(kPartBlocks * sms), kThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

template <typename T>
cudaError_t launch_grad_finish(const SparseGradArgs& args, cudaStream_t stream) {
    finish_keys<T><<<dim3(static_cast<unsigned>(args.all_blocks), 2), kThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

#define MSA_INSTANTIATE(T)                                                               \
    template cudaError_t launch_grad_prepare<T>(const SparseGradArgs&, cudaStream_t);    \
    template cudaError_t launch_grad_slots<T>(const SparseGradArgs&, cudaStream_t);      \
    template cudaError_t launch_grad_parts<T>(const SparseGradArgs&, int, cudaStream_t); \
    template cudaError_t launch_grad_finish<T>(const SparseGradArgs&, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
