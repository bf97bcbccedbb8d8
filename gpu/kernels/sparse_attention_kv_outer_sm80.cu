// SPDX-License-Identifier: MIT
// The first phase of KV-outer, with mma.sync and cp.async. It does what
// sparse_attention_kv_outer_sm90.cu does, on any device of compute capability 8.0 or later.
//
// A thread block copies the keys and values of a block to shared memory. Its warps then work
// independently: each loads 16 rows (query, head) that selected the block at a time from global
// memory into registers, while it multiplies the previous ones (not with 256 channels).
//
// A row has one softmax per block. Its output is normalised and goes to a slot with the log of the
// denominator; sparse_attention_union_sm80.cu adds the slots of a row.
#include <algorithm>

#include "gpu/device/attend_mma.cuh"
#include "gpu/device/attend_rows.cuh"
#include "gpu/device/by_sizes.cuh"
#include "gpu/kernels/kernel_elements.h"
#include "gpu/kernels/sparse_attention_sm80.h"

namespace msa::cuda {
namespace {

/// Warps of a thread block. With 256 channels it is the only one of an SM.
template <int Dim>
constexpr int kWarps = Dim == 256 ? 8 : 4;
template <int Dim>
constexpr int kThreads = kWarps<Dim>* kWarp;

template <typename T, int Dim, int BlockSize>
struct Shared {
    static constexpr int kMostKeys = Dim == 256 ? 32 : 64;
    static constexpr int kKeys = BlockSize < kMostKeys ? BlockSize : kMostKeys;  // at once
    using Tiles = LaneTiles<T, Dim, BlockSize>;
    uint16_t k[Tiles::kKeyBytes / 2], v[Tiles::kValueBytes / 2];
};

/// The lane's two rows of a pass over 16 rows (use, head) of an item.
template <typename T, int Dim>
struct PassRows {
    int place[2], seen[2];  // place: -1, of none
    WordRows<kRowWidth<T, Dim>, 1> q;
    RowScales<T> scales;

    __device__ PassRows(const SparseTilesArgs& args, const KeyBlockItem& item, int pass) {
        const int heads = args.group_size();
        const BlockUse* const uses = args.workspace.uses + item.begin;
        int64_t from[2] = {0, 0};  // row (query, head)
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int row = 16 * pass + lane_id() / 4 + 8 * side, at = row / heads;
            place[side] = -1, seen[side] = 0;
            if (at >= item.count) continue;
            const int head = row - at * heads;
            const auto use = __ldg(reinterpret_cast<const int4*>(uses + at));
            place[side] = use.y + head, seen[side] = use.z;
            from[side] = int64_t{use.x} * args.query_heads + item.group * heads + head;
        }
        q.load([&](int, int side) {
            return place[side] < 0
                       ? nullptr
                       : static_cast<const uint16_t*>(args.q) + from[side] * kRowWidth<T, Dim>;
        });
        scales = {args.scale * kLog2E, args.scales, from[0], from[1]};
    }
};

template <typename T, int Dim, int BlockSize>
__global__ void __launch_bounds__(kThreads<Dim>, Dim == 256 ? 1 : 2)
    kv_outer(const __grid_constant__ SparseTilesArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using Memory = Shared<T, Dim, BlockSize>;
    auto& shared = *reinterpret_cast<Memory*>(memory);
    constexpr int kKeys = Memory::kKeys, kWidth = kRowWidth<T, Dim>;
    constexpr bool kAhead = Dim < 256;  // rows are loaded while others are multiplied
    const SparseWorkspace& work = args.workspace;
    const SparseRound round = work.rounds[args.round];
    const KeyBlockItem* const items = work.items + round.first_chunk * args.most_items();
    const int heads = args.group_size(), lane = lane_id();
    const int64_t stride = int64_t{args.groups} * kWidth;
    const typename Memory::Tiles tiles(shared.k, shared.v);
    for (int i = static_cast<int>(blockIdx.x); i < round.items; i += static_cast<int>(gridDim.x)) {
        const KeyBlockItem item = items[i];
        const int64_t key = work.uses[item.begin].key;
        const auto there = static_cast<int>(min(args.keys - key, int64_t{BlockSize}));
        const int64_t from = key * stride + item.group * kWidth;
        __syncthreads();  // all warps are done with the last block
        copy_rows<kWidth, BlockSize, kThreads<Dim>, kTileWidth<T, Dim>>(
            shared.k, static_cast<const uint16_t*>(args.k) + from, stride, there);
        BlockScales scales{};
        if constexpr (kIsE4m3<T>) {
            const int64_t number = int64_t{item.block} * args.groups + item.group;
            scales = block_scales_at(args.scales, number);
            const char* const block = args.values + number * Memory::Tiles::kValueBytes;
            for (int i = static_cast<int>(threadIdx.x); i < Memory::Tiles::kValueBytes / 16;
                 i += kThreads<Dim>)
                copy_chunk(shared.v + i * kChunk, block + i * 16, true);
        } else {
            copy_rows<Dim, BlockSize, kThreads<Dim>>(
                shared.v, static_cast<const uint16_t*>(args.v) + from, stride, there);
        }
        commit_copies();
        const int passes = (item.count * heads + 15) / 16;
        PassRows<T, Dim> next(args, item, warp_id());
        wait_for_groups<0>();
        __syncthreads();
        for (int pass = warp_id(); pass < passes; pass += kWarps<Dim>) {
            if (!kAhead && pass != warp_id()) next = PassRows<T, Dim>(args, item, pass);
            const PassRows<T, Dim> rows = next;
            if (kAhead && pass + kWarps<Dim> < passes)
                next = PassRows<T, Dim>(args, item, pass + kWarps<Dim>);
            float out[1][Dim / 2] = {};
            RunningSoftmax<T> softmax;
#pragma unroll
            for (int first = 0; first < BlockSize; first += kKeys) {
                const int seen[2] = {rows.seen[0] - first, rows.seen[1] - first};
                if (!__any_sync(kAllLanes, seen[0] > 0 || seen[1] > 0)) break;
                attend<T, Dim, kKeys>(out, softmax, rows.q, tiles, 0, first, seen, rows.scales,
                                      scales, first == 0);
            }
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float total = softmax.sum[side];
                total += __shfl_xor_sync(kAllLanes, total, 1);
                total += __shfl_xor_sync(kAllLanes, total, 2);
                const int place = rows.place[side];
                if (place < 0) continue;
                store_slot<Stored<T>>(out[0], side, __fdividef(1, total), work.partial_out, place);
                if (lane % 4 == 0)
                    work.partial_lse[place] =
                        best_of(softmax, side, rows.scales.all) + __log2f(total);
            }
        }
    }
}

template <typename T, int Dim, int BlockSize>
cudaError_t launch(const SparseTilesArgs& args, int sms, cudaStream_t stream) {
    constexpr int kBytes = sizeof(Shared<T, Dim, BlockSize>);
    static_assert(kIsE4m3<T> || kBytes == sparse_kv_outer_bytes_sm80(Dim, BlockSize));
    static_assert(kBytes <= (Dim == 256 ? 163 : 99) << 10);
    auto* const kernel = kv_outer<T, Dim, BlockSize>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    int blocks = 0;  // on an SM
    const cudaError_t asked =
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads<Dim>, kBytes);
    if (asked != cudaSuccess) return asked;
    kernel<<<static_cast<unsigned>(blocks * sms), kThreads<Dim>, kBytes, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace

template <typename T>
cudaError_t launch_sparse_kv_outer_sm80(const SparseTilesArgs& args, int sms, cudaStream_t stream) {
    return by_head_sizes<T>(args.head_dim, args.block_size, [&]<int Dim, int BlockSize>() {
        return launch<T, Dim, BlockSize>(args, sms, stream);
    });
}

#define MSA_INSTANTIATE(T) \
    template cudaError_t launch_sparse_kv_outer_sm80<T>(const SparseTilesArgs&, int, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
