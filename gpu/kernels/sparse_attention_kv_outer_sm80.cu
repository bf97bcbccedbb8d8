// SPDX-License-Identifier: MIT
// The first phase of KV-outer, with mma.sync and cp.async. It does what
// sparse_attention_kv_outer_sm90.cu does, on any device of compute capability 8.0 or later.
//
// A thread block copies the keys and values of a block to shared memory. Its warps then work
// independently: each loads 16 rows (query, head) that selected the block at a time from global
// memory into registers, while it multiplies the previous ones.
//
// A row has one softmax per block. Its output is normalised and goes to a slot with the log of the
// denominator; sparse_attention_union_sm80.cu adds the slots of a row.
#include <algorithm>

#include "gpu/device/attend_rows.cuh"
#include "gpu/device/softmax.cuh"
#include "gpu/device/stream_mma.cuh"
#include "gpu/kernels/kernel_elements.h"
#include "gpu/kernels/sparse_attention_sm80.h"

namespace msa::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;

template <int Dim, int BlockSize>
struct Shared {
    static constexpr int kKeys = BlockSize < 64 ? BlockSize : 64;  // multiplied at once
    uint16_t k[BlockSize * Dim], v[BlockSize * Dim];
};

/// The lane's two rows of a pass over 16 rows (use, head) of an item.
template <int Dim>
struct PassRows {
    int place[2], seen[2];  // place: -1, of none
    WordRows<Dim, 1> q;

    __device__ PassRows(const SparseTilesArgs& args, const KeyBlockItem& item, int pass) {
        const int heads = args.group_size();
        const BlockUse* const uses = args.workspace.uses + item.begin;
        const uint16_t* from[2];
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            const int row = 16 * pass + lane_id() / 4 + 8 * side, at = row / heads;
            place[side] = -1, seen[side] = 0, from[side] = nullptr;
            if (at >= item.count) continue;
            const int head = row - at * heads;
            const auto use = __ldg(reinterpret_cast<const int4*>(uses + at));
            place[side] = use.y + head, seen[side] = use.z;
            from[side] = static_cast<const uint16_t*>(args.q) +
                         (int64_t{use.x} * args.query_heads + item.group * heads + head) * Dim;
        }
        q.load([&](int, int side) { return from[side]; });
    }
};

template <typename T, int Dim, int BlockSize>
__global__ void __launch_bounds__(kThreads, 2)
    kv_outer(const __grid_constant__ SparseTilesArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using Memory = Shared<Dim, BlockSize>;
    auto& shared = *reinterpret_cast<Memory*>(memory);
    constexpr int kKeys = Memory::kKeys;
    const SparseWorkspace& work = args.workspace;
    const SparseRound round = work.rounds[args.round];
    const KeyBlockItem* const items = work.items + round.first_chunk * args.most_items();
    const int heads = args.group_size(), lane = lane_id();
    const float scale = args.scale * kLog2E;
    const int64_t stride = int64_t{args.groups} * Dim;
    const LaneWords<Dim> keys(address_in_shared(shared.k));
    const LaneColumns<Dim> values(address_in_shared(shared.v));
    for (int i = static_cast<int>(blockIdx.x); i < round.items; i += static_cast<int>(gridDim.x)) {
        const KeyBlockItem item = items[i];
        const int64_t key = work.uses[item.begin].key;
        const auto there = static_cast<int>(min(args.keys - key, int64_t{BlockSize}));
        const int64_t from = key * stride + item.group * Dim;
        __syncthreads();  // all warps are done with the last block
        copy_rows<Dim, BlockSize, kThreads>(shared.k, static_cast<const uint16_t*>(args.k) + from,
                                            stride, there);
        copy_rows<Dim, BlockSize, kThreads>(shared.v, static_cast<const uint16_t*>(args.v) + from,
                                            stride, there);
        commit_copies();
        const int passes = (item.count * heads + 15) / 16;
        PassRows<Dim> next(args, item, warp_id());
        wait_for_groups<0>();
        __syncthreads();
        for (int pass = warp_id(); pass < passes; pass += kWarps) {
            const PassRows<Dim> rows = next;
            if (pass + kWarps < passes) next = PassRows<Dim>(args, item, pass + kWarps);
            float out[1][Dim / 2] = {};
            Softmax softmax;
#pragma unroll
            for (int first = 0; first < BlockSize; first += kKeys) {
                const int seen[1][2] = {{rows.seen[0] - first, rows.seen[1] - first}};
                if (!__any_sync(kAllLanes, seen[0][0] > 0 || seen[0][1] > 0)) break;
                float sum[1][kKeys / 2], factor[2];
                bool any[1];
                multiply_keys<T, Dim, 1, kKeys>(sum, rows.q, keys,
                                                static_cast<uint32_t>(first) * Dim * 2);
                softmax.step(sum[0], seen, scale, factor, any);
                if (first > 0 && __any_sync(kAllLanes, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
                    for (int n = 0; n < Dim / 2; ++n) out[0][n] *= factor[n / 2 % 2];
                }
                uint32_t p[1][kKeys / 4];
#pragma unroll
                for (int n = 0; n < kKeys / 4; ++n)
                    p[0][n] = pack<T>(sum[0][2 * n], sum[0][2 * n + 1]);
                multiply_values<T, Dim, 1, kKeys>(out, p, values,
                                                  static_cast<uint32_t>(first) * Dim * 2);
            }
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                float total = softmax.sum[side];
                total += __shfl_xor_sync(kAllLanes, total, 1);
                total += __shfl_xor_sync(kAllLanes, total, 2);
                const int place = rows.place[side];
                if (place < 0) continue;
                store_slot<T>(out[0], side, __fdividef(1, total), work.partial_out, place);
                if (lane % 4 == 0)
                    work.partial_lse[place] = fmaf(softmax.reference[side], scale, __log2f(total));
            }
        }
    }
}

template <typename T, int Dim, int BlockSize>
cudaError_t launch(const SparseTilesArgs& args, int sms, cudaStream_t stream) {
    constexpr int kBytes = sizeof(Shared<Dim, BlockSize>);
    static_assert(kBytes <= 99 << 10);
    auto* const kernel = kv_outer<T, Dim, BlockSize>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    int blocks = 0;  // on an SM
    const cudaError_t asked =
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kThreads, kBytes);
    if (asked != cudaSuccess) return asked;
    kernel<<<static_cast<unsigned>(blocks * sms), kThreads, kBytes, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace

template <typename T>
cudaError_t launch_sparse_kv_outer_sm80(const SparseTilesArgs& args, int sms, cudaStream_t stream) {
    const auto launch_dim = [&]<int Dim>() {
        switch (args.block_size) {
            case 32: return launch<T, Dim, 32>(args, sms, stream);
            case 64: return launch<T, Dim, 64>(args, sms, stream);
            default: return launch<T, Dim, 128>(args, sms, stream);
        }
    };
    return args.head_dim == 64 ? launch_dim.template operator()<64>()
                               : launch_dim.template operator()<128>();
}

#define MSA_INSTANTIATE(T) \
    template cudaError_t launch_sparse_kv_outer_sm80<T>(const SparseTilesArgs&, int, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
