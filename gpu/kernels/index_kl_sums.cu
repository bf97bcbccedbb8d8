// SPDX-License-Identifier: MIT
// What stands before and behind the blocks of index_kl: the items, and the sums of slots and parts.
#include <cub/block/block_scan.cuh>

#include "gpu/device/kl_uses.cuh"

namespace msa::cuda {
namespace {

constexpr int kThreads = 256, kListThreads = 1024;

unsigned blocks_for(int64_t threads) {
    return static_cast<unsigned>(ceil_div(threads, int64_t{kThreads}));
}

__global__ void __launch_bounds__(kListThreads) list_items(KlBlocks a) {
    using Scan = cub::BlockScan<int, kListThreads>;
    __shared__ typename Scan::TempStorage storage;
    int before = 0;
    for (int first = 0; first < a.lists(); first += kListThreads) {
        const int list = first + static_cast<int>(threadIdx.x);
        const QueryRange uses = list < a.lists() ? uses_of(a, list) : QueryRange{0, 0};
        const auto count =
            static_cast<int>((uses.end - uses.begin + kKlItemUses - 1) / kKlItemUses);
        int start = 0, sum = 0;
        __syncthreads();
        Scan(storage).ExclusiveSum(count, start, sum);
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
    for (int s = 0; s < used; ++s) {
        const float4 value = from[int64_t{s} * vectors];
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
    const int values = block.keys * a.index_dim;
    for (int i = static_cast<int>(blockIdx.y * kThreads + threadIdx.x); i < values;
         i += static_cast<int>(gridDim.y) * kThreads) {
        float sum = 0;
        for (int group = 0; group < a.groups; ++group) {
            const int32_t* const starts = a.item_starts + group * a.block_count + blockIdx.x;
            for (int item = starts[0]; item < starts[1]; ++item)
                sum += a.d_keys[int64_t{item} * a.block_size * a.index_dim + i];
        }
        d_index_k[block.key * a.index_dim + i] += gradient * sum;
    }
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

}  // namespace msa::cuda
