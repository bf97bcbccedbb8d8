// SPDX-License-Identifier: MIT
// Split-K decode with mma.sync and cp.async, for few queries. kDecodeParts thread blocks compute 16
// heads of one (query, group) together. Each takes every kDecodeParts-th of the selected blocks,
// and each of its warps a part of a block's keys.
//
//   decode       writes outputs, largest scores and sums of a thread block's part to global memory
//   join_parts   a warp merges the parts of a head, and writes out and lse
//
// Keys that the query does not see are never copied.
#include "gpu/device/softmax.cuh"
#include "gpu/device/stream_mma.cuh"
#include "gpu/kernels/kernel_elements.h"
#include "gpu/kernels/sparse_attention_sm80.h"

namespace msa::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp, kHeads = kDecodeHeads;

template <int Dim, int BlockSize>
struct Shared {
    static constexpr int kStages = BlockSize * Dim == 128 * 128 ? 1 : 2;  // two thread blocks an SM
    static constexpr int kKeys = BlockSize / kWarps < 16 ? 16 : BlockSize / kWarps;  // of a warp
    struct Tiles {
        uint16_t k[kStages][BlockSize * Dim], v[kStages][BlockSize * Dim];
    };
    union {
        Tiles tiles;
        float out[kWarps][kHeads][Dim];  // after the last tile
    };
    float best[kWarps][kHeads], total[kWarps][kHeads];
};

/// What a thread block answers.
struct Part {
    int number, heads, first_head, group;
    int64_t query, row;  // row: (query, group)

    __device__ explicit Part(const SparsePartsArgs& args)
        : number(static_cast<int>(blockIdx.x) % kDecodeParts), heads(args.group_size()) {
        const int parts = (heads + kHeads - 1) / kHeads;
        const int item = static_cast<int>(blockIdx.x) / kDecodeParts;
        first_head = item % parts * kHeads;
        row = item / parts;
        query = row / args.groups;
        group = static_cast<int>(row % args.groups);
    }
    __device__ int64_t first_row(const SparsePartsArgs& args) const {  // (query, head)
        return query * args.query_heads + group * heads + first_head;
    }
    /// The n-th block of this thread block; -1: none.
    __device__ int block(const SparsePartsArgs& args, int n) const {
        const int slot = number + n * kDecodeParts;
        return slot < args.top_k ? args.ids[row * args.top_k + slot] : -1;
    }
};

/// Weight of a part whose largest score is `own` beside one of `best`, base 2. A part without a
/// score, whose sums are 0 or (of NaN scores) NaN, keeps them.
__device__ float weight_of(float own, float best) {
    return own == -INFINITY ? 1 : exp2f(own - best);
}

template <typename T, int Dim, int BlockSize>
__global__ void __launch_bounds__(kThreads, 2)
    decode(const __grid_constant__ SparsePartsArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using Memory = Shared<Dim, BlockSize>;
    auto& shared = *reinterpret_cast<Memory*>(memory);
    constexpr int kKeys = Memory::kKeys, kStages = Memory::kStages;
    const Part part(args);
    const KeyRange visible = args.visible[part.query];
    const int lane = lane_id(), warp = warp_id(), first = warp * kKeys;
    const int64_t stride = int64_t{args.groups} * Dim;
    const int64_t base = visible.first * stride + part.group * Dim;
    const auto seen_of = [&](int id) {
        return static_cast<int>(min(visible.count - int64_t{id} * BlockSize, int64_t{BlockSize}));
    };
    int ahead[kStages];
    const auto fetch = [&](int n, int stage) {
        const int id = part.block(args, n);
        ahead[stage] = id;
        if (id >= 0) {
            const int64_t from = base + int64_t{id} * BlockSize * stride;
            copy_rows<Dim, BlockSize, kThreads>(shared.tiles.k[stage],
                                                static_cast<const uint16_t*>(args.k) + from, stride,
                                                seen_of(id));
        }
        commit_copies();
        if (id >= 0) {
            const int64_t from = base + int64_t{id} * BlockSize * stride;
            copy_rows<Dim, BlockSize, kThreads>(shared.tiles.v[stage],
                                                static_cast<const uint16_t*>(args.v) + from, stride,
                                                seen_of(id));
        }
        commit_copies();
    };
#pragma unroll
    for (int n = 0; n < kStages; ++n) fetch(n, n);

    WordRows<Dim, 1> q;
    q.load([&](int, int side) {
        const int head = lane / 4 + 8 * side;
        return part.first_head + head < part.heads
                   ? static_cast<const uint16_t*>(args.q) + (part.first_row(args) + head) * Dim
                   : nullptr;
    });
    const LaneWords<Dim> keys(address_in_shared(shared.tiles.k));
    const LaneColumns<Dim> values(address_in_shared(shared.tiles.v));
    const float scale = args.scale * kLog2E;
    float out[1][Dim / 2] = {};
    Softmax softmax;
    for (int n = 0;; n += kStages) {
        bool done = false;
#pragma unroll
        for (int stage = 0; stage < kStages; ++stage) {
            const int id = ahead[stage];
            if (id < 0) {
                done = true;
                break;
            }
            const int seen_here = seen_of(id) - first;
            const int seen[1][2] = {{seen_here, seen_here}};
            const bool takes = seen_here > 0 && first < BlockSize;
            const auto offset = static_cast<uint32_t>(stage * BlockSize + first) * Dim * 2;
            float sum[1][kKeys / 2], factor[2];
            bool any[1];
            wait_for_groups<2 * kStages - 1>();
            __syncthreads();
            if (takes) {
                multiply_keys<T, Dim, 1, kKeys>(sum, q, keys, offset);
                softmax.step(sum[0], seen, scale, factor, any);
#pragma unroll
                for (int i = 0; i < Dim / 2; ++i) out[0][i] *= factor[i / 2 % 2];
            }
            wait_for_groups<2 * kStages - 2>();
            __syncthreads();
            if (takes) {
                uint32_t p[1][kKeys / 4];
#pragma unroll
                for (int i = 0; i < kKeys / 4; ++i)
                    p[0][i] = pack<T>(sum[0][2 * i], sum[0][2 * i + 1]);
                multiply_values<T, Dim, 1, kKeys>(out, p, values, offset);
            }
            __syncthreads();
            fetch(n + stage + kStages, stage);
        }
        if (done) break;
    }
    wait_for_groups<0>();
    __syncthreads();

#pragma unroll
    for (int side = 0; side < 2; ++side) {
        const int head = lane / 4 + 8 * side;
        float total = softmax.sum[side];
        total += __shfl_xor_sync(kAllLanes, total, 1);
        total += __shfl_xor_sync(kAllLanes, total, 2);
        if (lane % 4 == 0) {
            shared.best[warp][head] = softmax.reference[side] * scale;
            shared.total[warp][head] = total;
        }
#pragma unroll
        for (int j = 0; j < Dim / 8; ++j)
            *reinterpret_cast<float2*>(&shared.out[warp][head][8 * j + 2 * (lane % 4)]) =
                make_float2(out[0][4 * j + 2 * side], out[0][4 * j + 2 * side + 1]);
    }
    __syncthreads();
    const int64_t to = int64_t{blockIdx.x} * kHeads;
    for (int i = threadIdx.x; i < kHeads * Dim / 4; i += kThreads) {
        const int head = i / (Dim / 4), quad = i % (Dim / 4);
        float best = -INFINITY;
        for (int w = 0; w < kWarps; ++w) best = fmaxf(best, shared.best[w][head]);
        float4 sum{};
        float total = 0;
        for (int w = 0; w < kWarps; ++w) {
            const float weight = weight_of(shared.best[w][head], best);
            const float4 more = reinterpret_cast<const float4*>(shared.out[w][head])[quad];
            sum.x = fmaf(weight, more.x, sum.x), sum.y = fmaf(weight, more.y, sum.y);
            sum.z = fmaf(weight, more.z, sum.z), sum.w = fmaf(weight, more.w, sum.w);
            total = fmaf(weight, shared.total[w][head], total);
        }
        reinterpret_cast<float4*>(args.parts + (to + head) * Dim)[quad] = sum;
        if (quad == 0) args.sums[to + head] = make_float2(best, total);
    }
}

/// A warp per (query, head).
template <typename T, int Dim>
__global__ void __launch_bounds__(kThreads)
    join_parts(const __grid_constant__ SparsePartsArgs args) {
    const int64_t row = int64_t{blockIdx.x} * kWarps + warp_id();
    if (row >= args.queries * args.query_heads) return;
    constexpr int kPerLane = Dim / kWarp;
    const int heads = args.group_size(), groups_of_heads = (heads + kHeads - 1) / kHeads;
    const int64_t query = row / args.query_heads;
    const int in_query = static_cast<int>(row % args.query_heads);
    const int group = in_query / heads, head = in_query % heads;
    const int64_t item = (query * args.groups + group) * groups_of_heads + head / kHeads;
    const int64_t first = item * kDecodeParts * kHeads + head % kHeads;
    float2 sums[kDecodeParts];
    float values[kDecodeParts][kPerLane], best = -INFINITY;
#pragma unroll
    for (int n = 0; n < kDecodeParts; ++n) {
        const int64_t at = first + n * kHeads;
        sums[n] = args.sums[at];
#pragma unroll
        for (int i = 0; i < kPerLane; ++i)
            values[n][i] = args.parts[at * Dim + i * kWarp + lane_id()];
        best = fmaxf(best, sums[n].x);
    }
    float total = 0, sum[kPerLane] = {};
#pragma unroll
    for (int n = 0; n < kDecodeParts; ++n) {
        const float weight = weight_of(sums[n].x, best);
        total = fmaf(weight, sums[n].y, total);
#pragma unroll
        for (int i = 0; i < kPerLane; ++i) sum[i] = fmaf(weight, values[n][i], sum[i]);
    }
    const bool any = total != 0;
    auto* const to = static_cast<T*>(args.out) + row * Dim;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
        to[i * kWarp + lane_id()] = rounded<T>(any ? sum[i] / total : 0);
    if (lane_id() == 0) args.lse[row] = any ? (best + log2f(total)) * kLn2 : -INFINITY;
}

template <typename T, int Dim, int BlockSize>
cudaError_t launch(const SparsePartsArgs& args, cudaStream_t stream) {
    constexpr int kBytes = sizeof(Shared<Dim, BlockSize>);
    static_assert(kBytes <= 99 << 10);
    auto* const kernel = decode<T, Dim, BlockSize>;
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    const int64_t blocks = decode_part_count(args.queries, args.groups, args.group_size());
    kernel<<<static_cast<unsigned>(blocks), kThreads, kBytes, stream>>>(args);
    const int64_t rows = args.queries * args.query_heads;
    join_parts<T, Dim>
        <<<static_cast<unsigned>(ceil_div(rows, kWarps)), kThreads, 0, stream>>>(args);
    return cudaGetLastError();
}

}  // namespace

template <typename T>
cudaError_t launch_sparse_decode_sm80(const SparsePartsArgs& args, cudaStream_t stream) {
    const auto launch_dim = [&]<int Dim>() {
        switch (args.block_size) {
            case 32: return launch<T, Dim, 32>(args, stream);
            case 64: return launch<T, Dim, 64>(args, stream);
            default: return launch<T, Dim, 128>(args, stream);
        }
    };
    return args.head_dim == 64 ? launch_dim.template operator()<64>()
                               : launch_dim.template operator()<128>();
}

#define MSA_INSTANTIATE(T) \
    template cudaError_t launch_sparse_decode_sm80<T>(const SparsePartsArgs&, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
