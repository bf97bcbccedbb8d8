// SPDX-License-Identifier: MIT
// The kernels before and after the products of index_kl: the work items, and the sums of slots and
// parts.
#include <cub/block/block_scan.cuh>

#include "gpu/device/exp2.cuh"
#include "gpu/device/kl_uses.cuh"

namespace msa::cuda {
namespace {

constexpr int kThreads = 256, kListThreads = 1024;

unsigned blocks_for(int64_t threads) {
    return static_cast<unsigned>(ceil_div(threads, int64_t{kThreads}));
}

using ListScan = cub::BlockScan<int, kListThreads>;

/// Where in the order an item stands: the number of its bin.
__device__ int bin_of(const KlBlocks& a, const KlItem& item) {
    const int64_t query = query_of_use(a, item.begin);
    const auto window =
        static_cast<int>((query - a.piece.begin) * kKlWindows / (a.piece.end - a.piece.begin));
    const auto length = static_cast<int>((item.end - item.begin - 1) * kKlLengths / kKlItemUses);
    return (item.group * kKlWindows + window) * kKlLengths + kKlLengths - 1 - length;
}

/// By the thread block: a counting sort. Items of a bin have no order of their own: their results
/// go where their numbers say.
__device__ void put_in_order(const KlBlocks& a, int items, ListScan::TempStorage& storage) {
    const int bins = a.groups * kKlBins, thread = static_cast<int>(threadIdx.x);
    for (int i = thread; i < bins; i += kListThreads) a.bins[i] = 0;
    if (thread == 0) *a.taken = 0;
    __syncthreads();
    for (int n = thread; n < items; n += kListThreads) atomicAdd(a.bins + bin_of(a, a.items[n]), 1);
    __syncthreads();
    int before = 0;
    for (int first = 0; first < bins; first += kListThreads) {
        const int i = first + thread;
        int start = 0, sum = 0;
        ListScan(storage).ExclusiveSum(i < bins ? a.bins[i] : 0, start, sum);
        __syncthreads();
        if (i < bins) a.bins[i] = before + start;
        before += sum;
    }
    __syncthreads();
    for (int n = thread; n < items; n += kListThreads)
        a.order[atomicAdd(a.bins + bin_of(a, a.items[n]), 1)] = n;
}

__global__ void __launch_bounds__(kListThreads) list_items(KlBlocks a) {
    __shared__ ListScan::TempStorage storage;
    int before = 0;
    for (int first = 0; first < a.lists(); first += kListThreads) {
        const int list = first + static_cast<int>(threadIdx.x);
        const QueryRange uses = list < a.lists() ? uses_of(a, list) : QueryRange{0, 0};
        const auto count =
            static_cast<int>((uses.end - uses.begin + kKlItemUses - 1) / kKlItemUses);
        int start = 0, sum = 0;
        __syncthreads();
        ListScan(storage).ExclusiveSum(count, start, sum);
        start += before;
        if (list < a.lists()) a.item_starts[list] = start;
        for (int n = 0; n < count; ++n) {
            const int64_t begin = uses.begin + int64_t{n} * kKlItemUses;
            a.items[start + n] = {begin, min(begin + kKlItemUses, uses.end), list % a.block_count,
                                  list / a.block_count};
        }
        before += sum;
    }
    if (threadIdx.x == 0) a.item_starts[a.lists()] = before;
    __syncthreads();
    if (a.order != nullptr) put_in_order(a, before, storage);
}

__global__ void __launch_bounds__(kThreads)
    sum_slots(KlBlocks a, float gradient, bool first, float* d_index_q, double* kl) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    const int vectors = a.index_dim / 4;
    const int64_t in_piece = i / vectors, row = a.piece.begin * a.groups + in_piece;
    const auto part = static_cast<int>(i % vectors);
    if (in_piece >= (a.piece.end - a.piece.begin) * a.groups) return;
    const int used = used_slots(a, row / a.groups, row);
    const auto* from =
        reinterpret_cast<const float4*>(a.d_query) + in_piece * a.slots * vectors + part;
    float4 sum{};
#pragma unroll 8
    for (int s = 0; s < used; ++s) {
        const float4 value = __ldcs(from + int64_t{s} * vectors);
        sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
    }
    auto& to = reinterpret_cast<float4*>(d_index_q)[row * vectors + part];
    const float4 before = first ? float4{} : to;
    to = {before.x + gradient * sum.x, before.y + gradient * sum.y, before.z + gradient * sum.z,
          before.w + gradient * sum.w};
    if (kl == nullptr || part != 0) return;
    double all = first ? 0 : kl[row];
    for (int s = 0; s < used; ++s) all += a.kl[in_piece * a.slots + s];
    kl[row] = all;
}

__global__ void __launch_bounds__(kThreads)
    sum_items(KlBlocks a, float gradient, float* d_index_k) {
    const SequenceBlock block = a.blocks[blockIdx.x];
    const int vectors = block.keys * a.index_dim / 4;
    const int64_t item_vectors = int64_t{a.block_size} * a.index_dim / 4;
    for (int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x); i < vectors;
         i += static_cast<int>(gridDim.y) * kThreads) {
        const auto* const parts = reinterpret_cast<const float4*>(a.d_keys) + i;
        float4 sum{};
        for (int group = 0; group < a.groups; ++group) {
            const int32_t* const starts = a.item_starts + group * a.block_count + blockIdx.x;
#pragma unroll 4
            for (int item = starts[0]; item < starts[1]; ++item) {
                const float4 part = __ldcs(parts + item * item_vectors);
                sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
            }
        }
        float4& to = reinterpret_cast<float4*>(d_index_k + block.key * a.index_dim)[i];
        to = {to.x + gradient * sum.x, to.y + gradient * sum.y, to.z + gradient * sum.z,
              to.w + gradient * sum.w};
    }
}

__global__ void __launch_bounds__(kThreads) join_lse(KlBlocks a, bool first, float* lse) {
    const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (i >= (a.piece.end - a.piece.begin) * a.groups) return;
    const int64_t row = a.piece.begin * a.groups + i;
    const float* const slots = a.slot_lse + i * a.slots;
    const int used = used_slots(a, row / a.groups, row);
    const float before = first ? -INFINITY : lse[row];
    float most = before;
    for (int s = 0; s < used; ++s) most = fmaxf(most, slots[s]);
    const float shift = most == -INFINITY ? 0.0F : most;
    float sum = expf(before - shift);
    for (int s = 0; s < used; ++s) sum += expf(slots[s] - shift);
    lse[row] = sum == 0 ? -INFINITY : shift + logf(sum);
}

__global__ void __launch_bounds__(kThreads) to_base_two(const float* lse, int64_t rows, float* to) {
    const int64_t row = int64_t{blockIdx.x} * kThreads + threadIdx.x;
    if (row > rows) return;
    const float known = row < rows ? lse[row] : -INFINITY;
    to[row] = known == -INFINITY ? INFINITY : known * kLog2E;
}

}  // namespace

cudaError_t launch_kl_items(const KlBlocks& a, cudaStream_t stream) {
    list_items<<<1, kListThreads, 0, stream>>>(a);
    return cudaGetLastError();
}

cudaError_t launch_kl_sum_slots(const KlBlocks& a, float gradient, bool first, float* d_index_q,
                                double* kl, cudaStream_t stream) {
    const int64_t rows = (a.piece.end - a.piece.begin) * a.groups;
    sum_slots<<<blocks_for(rows * (a.index_dim / 4)), kThreads, 0, stream>>>(a, gradient, first,
                                                                             d_index_q, kl);
    return cudaGetLastError();
}

cudaError_t launch_kl_sum_items(const KlBlocks& a, float gradient, float* d_index_k,
                                cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(a.block_count), 8);
    sum_items<<<grid, kThreads, 0, stream>>>(a, gradient, d_index_k);
    return cudaGetLastError();
}

cudaError_t launch_kl_join_lse(const KlBlocks& a, bool first, float* lse, cudaStream_t stream) {
    const int64_t rows = (a.piece.end - a.piece.begin) * a.groups;
    join_lse<<<blocks_for(rows), kThreads, 0, stream>>>(a, first, lse);
    return cudaGetLastError();
}

cudaError_t launch_kl_lse(const float* lse, int64_t rows, float* to, cudaStream_t stream) {
    const int64_t blocks = (rows + kThreads) / kThreads;
    to_base_two<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(lse, rows, to);
    return cudaGetLastError();
}

}  // namespace msa::cuda
