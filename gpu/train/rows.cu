// SPDX-License-Identifier: MIT
// Operations on rows that a list names: the embedding, and the pieces of a window.
#include <algorithm>

#include "gpu/device/warp.cuh"
#include "gpu/train/kernels.h"
#include "gpu/train/vector.cuh"

namespace msa::cuda {
namespace {

template <int Width, typename T>
__global__ void __launch_bounds__(kThreads)
    copy_rows_kernel(const T* from, const int32_t* rows, T* to, int64_t count, int64_t width) {
    const int64_t at = global_thread() * Width;
    if (at >= count) return;
    float value[Width];
    load_vector(from + rows[at / width] * width + at % width, value);
    store_vector(to + at, value);
}

template <int Width, typename T>
__global__ void __launch_bounds__(kThreads)
    add_rows_kernel(const T* from, const int32_t* rows, T* to, int64_t count, int64_t width) {
    const int64_t at = global_thread() * Width;
    if (at >= count) return;
    float value[Width], sum[Width];
    T* const there = to + rows[at / width] * width + at % width;
    load_vector(from + at, value);
    load_vector(there, sum);
#pragma unroll
    for (int i = 0; i < Width; ++i) sum[i] += value[i];
    store_vector(there, sum);
}

constexpr int64_t kTokensOfPart = 1024;  // at least
constexpr int64_t kMostPartBytes = int64_t{1}
                                   << 26;  // of all partial sums, where there are several

int64_t embed_part_count(int64_t tokens, int64_t vocabulary, int64_t width) {
    const int64_t bytes = vocabulary * width * int64_t{sizeof(float)};
    return std::max<int64_t>(1, std::min(ceil_div(tokens, kTokensOfPart), kMostPartBytes / bytes));
}

constexpr int kEmbedThreads = 128, kEmbedColumns = 4;  // a thread's columns lie kEmbedThreads apart

/// A thread block per entry of the vocabulary, part of the tokens (`each` of them), and columns:
/// parts [gridDim.y, gridDim.x, width] = the sum of d_x over the part's tokens that are the entry,
/// in order.
template <typename T>
__global__ void __launch_bounds__(kEmbedThreads)
    embed_parts_kernel(const int32_t* tokens, const T* d_x, int64_t count, int64_t each,
                       int64_t width, float* parts) {
    constexpr int kWarps = kEmbedThreads / kWarp;
    __shared__ int found_by[kWarps];
    __shared__ int64_t list[kEmbedThreads];
    const int64_t entry = blockIdx.x, part = blockIdx.y;
    const int64_t column = int64_t{blockIdx.z} * kEmbedThreads * kEmbedColumns + threadIdx.x;
    const int64_t begin = part * each, end = min(begin + each, count);
    float sums[kEmbedColumns] = {};
    for (int64_t first = begin; first < end; first += kEmbedThreads) {
        const int64_t i = first + threadIdx.x;
        const bool is = i < end && tokens[i] == entry;
        const unsigned lanes = __ballot_sync(kAllLanes, is);
        if (lane_id() == 0) found_by[warp_id()] = __popc(lanes);
        const int found = __syncthreads_count(is);
        if (found == 0) continue;
        int at = __popc(lanes & ((1U << lane_id()) - 1));
        for (int warp = 0; warp < warp_id(); ++warp) at += found_by[warp];
        if (is) list[at] = i;
        __syncthreads();
        for (int n = 0; n < found; ++n) {
            const T* const row = d_x + list[n] * width;
#pragma unroll
            for (int c = 0; c < kEmbedColumns; ++c)
                if (column + c * kEmbedThreads < width)
                    sums[c] += load(row + column + c * kEmbedThreads);
        }
    }
    float* const to = parts + (part * gridDim.x + entry) * width;
#pragma unroll
    for (int c = 0; c < kEmbedColumns; ++c)
        if (column + c * kEmbedThreads < width) to[column + c * kEmbedThreads] = sums[c];
}

__global__ void __launch_bounds__(kThreads)
    add_embed_parts_kernel(const float* parts, int64_t part_count, int64_t count, float* d_table) {
    const int64_t at = global_thread();
    if (at >= count) return;
    float sum = d_table[at];
    for (int64_t part = 0; part < part_count; ++part) sum += parts[part * count + at];
    d_table[at] = sum;
}

/// A warp per row and head.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    merge_attention_kernel(const T* part_out, const float* part_lse, const int32_t* rows, T* out,
                           float* lse, int64_t count, int64_t heads, int64_t dims) {
    const int64_t from = global_thread() / kWarp;  // row and head
    if (from >= count) return;
    const int64_t to = rows[from / heads] * heads + from % heads;
    const float own = lse[to], other = part_lse[from];
    const float most = own > other || isnan(own) ? own : other;
    const bool none = most == -INFINITY;
    const float both = none ? most : most + logf(expf(own - most) + expf(other - most));
    const float share = own == -INFINITY ? 0.0F : expf(own - both);
    const float other_share = other == -INFINITY ? 0.0F : expf(other - both);
    for (int64_t d = lane_id(); d < dims; d += kWarp)
        put(out + to * dims + d,
            load(out + to * dims + d) * share + load(part_out + from * dims + d) * other_share);
    __syncwarp();
    if (lane_id() == 0) lse[to] = both;
}

}  // namespace

void copy_rows(cudaStream_t stream, In<2> from, View<const int32_t, 1> rows, Out<2> to) {
    const int64_t count = element_count(to.shape()), width = to.shape()[1];
    if (count == 0) return;
    by_train_element(from.element(), [&]<typename T>() {
        by_width(
            width,
            [&]<int Width>() {
                copy_rows_kernel<Width><<<blocks_for(count / Width), kThreads, 0, stream>>>(
                    static_cast<const T*>(from.data()), rows.data(), static_cast<T*>(to.data()),
                    count, width);
            },
            from.data(), to.data());
    });
    check_launch("copy_rows");
}

void add_rows(cudaStream_t stream, In<2> from, View<const int32_t, 1> rows, Out<2> to) {
    const int64_t count = element_count(from.shape()), width = from.shape()[1];
    if (count == 0) return;
    by_train_element(from.element(), [&]<typename T>() {
        by_width(
            width,
            [&]<int Width>() {
                add_rows_kernel<Width><<<blocks_for(count / Width), kThreads, 0, stream>>>(
                    static_cast<const T*>(from.data()), rows.data(), static_cast<T*>(to.data()),
                    count, width);
            },
            from.data(), to.data());
    });
    check_launch("add_rows");
}

int64_t embed_parts(int64_t tokens, int64_t vocabulary, int64_t width) {
    return embed_part_count(tokens, vocabulary, width) * vocabulary * width;
}

void embed_grad(cudaStream_t stream, View<const int32_t, 1> tokens, In<2> d_x,
                View<float, 2> d_table, float* parts) {
    const auto [vocabulary, width] = d_table.shape();
    const int64_t count = tokens.size();
    if (count == 0) return;
    const int64_t part_count = embed_part_count(count, vocabulary, width);
    const dim3 grid(static_cast<unsigned>(vocabulary), static_cast<unsigned>(part_count),
                    static_cast<unsigned>(ceil_div(width, int64_t{kEmbedThreads * kEmbedColumns})));
    by_train_element(d_x.element(), [&, width = width]<typename T>() {
        embed_parts_kernel<<<grid, kEmbedThreads, 0, stream>>>(
            tokens.data(), static_cast<const T*>(d_x.data()), count, ceil_div(count, part_count),
            width, parts);
    });
    check_launch("embed_grad");
    add_embed_parts_kernel<<<blocks_for(d_table.size()), kThreads, 0, stream>>>(
        parts, part_count, d_table.size(), d_table.data());
    check_launch("embed_grad, sums");
}

void merge_attention(cudaStream_t stream, In<3> part_out, const float* part_lse,
                     View<const int32_t, 1> rows, Out<3> out, float* lse) {
    const auto [tokens, heads, dims] = part_out.shape();
    const int64_t count = tokens * heads;
    if (count == 0) return;
    by_train_element(out.element(), [&, heads = heads, dims = dims]<typename T>() {
        merge_attention_kernel<<<blocks_for(count * kWarp), kThreads, 0, stream>>>(
            static_cast<const T*>(part_out.data()), part_lse, rows.data(),
            static_cast<T*>(out.data()), lse, count, heads, dims);
    });
    check_launch("merge_attention");
}

}  // namespace msa::cuda
