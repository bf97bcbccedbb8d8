// SPDX-License-Identifier: MIT
// Split-K decode with mma.sync and cp.async, for few queries. kDecodeParts thread blocks compute 16
// heads of one (query, group) together. Each takes every kDecodeParts-th of the selected blocks,
// and each of its warps a part of a block's keys.
//
//   decode       writes outputs, largest scores and sums of a thread block's part to global memory
//   join_parts   a warp merges the parts of a head, and writes out and lse
//
// With 256 channels a block of 128 keys is taken as two of 64.
//
// Keys that the query does not see are never copied; zeros are in their places. Operands of e4m3
// are multiplied as f16: gpu/device/decode_keys_e4m3.cuh.
#include "gpu/device/attend_mma.cuh"
#include "gpu/device/by_sizes.cuh"
#include "gpu/device/decode_keys_e4m3.cuh"
#include "gpu/device/part_of_block.cuh"
#include "gpu/device/ring.cuh"
#include "gpu/kernels/kernel_elements.h"
#include "gpu/kernels/sparse_attention_sm80.h"

namespace msa::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp, kHeads = kDecodeHeads;

template <typename T, int Dim, int BlockSize>
struct Shared {
    static constexpr int kWidth = kTileWidth<T, Dim>;
    static constexpr int kStages = BlockSize * kWidth == 128 * 128 ? 1 : 2;  // two blocks an SM
    static constexpr int kKeys = BlockSize / kWarps < 16 ? 16 : BlockSize / kWarps;  // of a warp
    struct Tiles {
        uint16_t k[kStages][BlockSize * kWidth], v[kStages][BlockSize * kWidth];
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
    /// Number of the sequence's block 0, of e4m3.
    __device__ int first_block(const SparsePartsArgs& args) const {
        return args.of_query[query].first_block;
    }
    /// The n-th block of this thread block, of BlockSize keys; -1: none.
    template <int Dim, int BlockSize>
    __device__ int block(const SparsePartsArgs& args, int n) const {
        const int slot = number + n * kDecodeParts;
        if constexpr (Dim == 256) return part_of_block<BlockSize>(args, row, slot);
        return slot < args.top_k ? args.ids[row * args.top_k + slot] : -1;
    }
};

/// Weight of a part whose largest score is `own` beside one of `best`, base 2. A part without a
/// score, whose sums are 0 or (of NaN scores) NaN, keeps them.
__device__ float weight_of(float own, float best) {
    return own == -INFINITY ? 1 : exp2f(own - best);
}

/// What a warp multiplies of a part: 16 heads with its keys. Operands of 16 bits.
template <typename T, int Dim, int BlockSize>
struct Products {
    using Memory = Shared<T, Dim, BlockSize>;
    static constexpr int kKeys = Memory::kKeys;
    WordRows<Dim, 1> q;
    LaneWords<Dim> keys;
    LaneColumns<Dim> values;
    float scale;

    __device__ Products(const SparsePartsArgs& args, const Part& part, Memory& shared)
        : keys(address_in_shared(shared.tiles.k)),
          values(address_in_shared(shared.tiles.v)),
          scale(args.scale * kLog2E) {
        q.load([&](int, int side) {
            const int head = lane_id() / 4 + 8 * side;
            return part.first_head + head < part.heads
                       ? static_cast<const uint16_t*>(args.q) + (part.first_row(args) + head) * Dim
                       : nullptr;
        });
    }
    __device__ static uint32_t offset(int stage, int first) {
        return static_cast<uint32_t>(stage * BlockSize + first) * Dim * 2;
    }
    /// sum: weights of the keys from `first` on of the stage, of which `seen` are visible.
    __device__ void weigh(float (&sum)[1][kKeys / 2], int stage, int first, const int (&seen)[2],
                          const BlockScales&, Softmax& softmax, float (&factor)[2]) const {
        multiply_keys<T, Dim, 1, kKeys>(sum, q, keys, offset(stage, first));
        softmax.step(sum[0], seen, scale, factor);
    }
    __device__ void add_values(float (&out)[1][Dim / 2], const float (&weights)[1][kKeys / 2],
                               int stage, int first) const {
        uint32_t p[1][kKeys / 4];
        keep_weights<T>(p[0], weights[0]);
        multiply_values<T, Dim, 1, kKeys>(out, p, values, offset(stage, first));
    }
};
template <int Dim, int BlockSize>
struct Products<__nv_fp8_e4m3, Dim, BlockSize> {
    using Memory = Shared<__nv_fp8_e4m3, Dim, BlockSize>;
    using Tile = MmaTile<Memory::kWidth>;
    static constexpr int kKeys = Memory::kKeys;
    static constexpr float scale = 1;
    Memory& shared;
    uint32_t rows[Dim / 4];
    float row_scale[2];

    __device__ Products(const SparsePartsArgs& args, const Part& part, Memory& memory)
        : shared(memory) {
        read_queries_e4m3<Dim>(args, part.first_row(args), part.heads - part.first_head, rows,
                               row_scale);
    }
    __device__ void weigh(float (&sum)[1][kKeys / 2], int stage, int first, const int (&seen)[2],
                          const BlockScales& scales, ScaledSoftmax& softmax,
                          float (&factor)[2]) const {
        const Tile tile{shared.tiles.k[stage]};
        scores_of_e4m3<Dim>(
            sum[0], rows, [&](int key, int chunk) { return tile.chunk(key, chunk); }, first);
        softmax.weigh(sum[0], softmax.meet(sum[0], seen, row_scale, scales, factor), scales,
                      factor);
    }
    __device__ void add_values(float (&out)[1][Dim / 2], const float (&weights)[1][kKeys / 2],
                               int stage, int first) const {
        const Tile tile{shared.tiles.v[stage]};
        add_values_e4m3<Dim>(
            out[0], weights[0], [&](int key, int chunk) { return tile.chunk(key, chunk); }, first);
    }
};

/// Starts copies of a block's keys or values; rows from `there` on become zeros.
template <int Width, int BlockSize, int TileWidth>
__device__ void copy_keys(uint16_t* to, const uint16_t* from, int64_t stride, int there) {
    if constexpr (Width == 256) {  // each warp's own
        constexpr int kKeys = BlockSize / kWarps;
        const int first = warp_id() * kKeys;
        warp_copy_rows<Width, kKeys>(to + first * Width,
                                     there > first ? from + first * stride : from, stride,
                                     there - first);
    } else {
        copy_rows<Width, BlockSize, kThreads, TileWidth>(to, from, stride, there);
    }
}

template <typename T, int Dim, int BlockSize>
__global__ void __launch_bounds__(kThreads, 2)
    decode(const __grid_constant__ SparsePartsArgs args) {
    extern __shared__ __align__(1024) char memory[];
    using Memory = Shared<T, Dim, BlockSize>;
    auto& shared = *reinterpret_cast<Memory*>(memory);
    constexpr int kKeys = Memory::kKeys, kStages = Memory::kStages, kWidth = kRowWidth<T, Dim>;
    const Part part(args);
    const KeyRange visible = args.visible[part.query];
    const int lane = lane_id(), warp = warp_id(), first = warp * kKeys;
    const int64_t stride = int64_t{args.groups} * kWidth;
    const int64_t base = visible.first * stride + part.group * kWidth;
    const auto seen_of = [&](int id) {
        return static_cast<int>(min(visible.count - int64_t{id} * BlockSize, int64_t{BlockSize}));
    };
    int ahead[kStages];
    const auto fetch = [&](int n, int stage) {
        const int id = part.block<Dim, BlockSize>(args, n);
        ahead[stage] = id;
        const int64_t from = base + int64_t{id} * BlockSize * stride;
        const auto copy = [&](uint16_t* to, const void* of) {
            if (id >= 0)
                copy_keys<kWidth, BlockSize, Memory::kWidth>(
                    to, static_cast<const uint16_t*>(of) + from, stride, seen_of(id));
            commit_copies();
        };
        copy(shared.tiles.k[stage], args.k);
        copy(shared.tiles.v[stage], args.v);
    };
#pragma unroll
    for (int n = 0; n < kStages; ++n) fetch(n, n);

    const Products<T, Dim, BlockSize> products(args, part, shared);
    float out[1][Dim / 2] = {};
    RunningSoftmax<T> softmax;
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
            const int seen[2] = {seen_here, seen_here};
            const bool takes = seen_here > 0 && first < BlockSize;
            BlockScales scales{};
            if constexpr (kIsE4m3<T>)
                scales = fresh_block_scales(
                    args.scales, int64_t{part.first_block(args) + id} * args.groups + part.group);
            float sum[1][kKeys / 2], factor[2];
            wait_for_groups<2 * kStages - 1>();
            __syncthreads();
            if (takes) {
                products.weigh(sum, stage, first, seen, scales, softmax, factor);
#pragma unroll
                for (int i = 0; i < Dim / 2; ++i) out[0][i] *= factor[i / 2 % 2];
            }
            wait_for_groups<2 * kStages - 2>();
            __syncthreads();
            if (takes) products.add_values(out, sum, stage, first);
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
            shared.best[warp][head] = best_of(softmax, side, products.scale);
            shared.total[warp][head] = total;
        }
        put_outputs<T>(out[0], side, shared.out[warp][head]);
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
    auto* const to = static_cast<Stored<T>*>(args.out) + row * Dim;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
        to[i * kWarp + lane_id()] = rounded<Stored<T>>(any ? sum[i] / total : 0);
    if (lane_id() == 0) args.lse[row] = any ? (best + log2f(total)) * kLn2 : -INFINITY;
}

template <typename T, int Dim, int BlockSize>
cudaError_t launch(const SparsePartsArgs& args, cudaStream_t stream) {
    constexpr int kBytes = sizeof(Shared<T, Dim, BlockSize>);
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
    return by_head_sizes<T>(args.head_dim, args.block_size, [&]<int Dim, int Size>() {
        constexpr int BlockSize = Dim == 256 ? kSparseWideStepKeys : Size;
        return launch<T, Dim, BlockSize>(args, stream);
    });
}

#define MSA_INSTANTIATE(T) \
    template cudaError_t launch_sparse_decode_sm80<T>(const SparsePartsArgs&, cudaStream_t);
MSA_FOR_KERNEL_ELEMENTS(MSA_INSTANTIATE)

}  // namespace msa::cuda
