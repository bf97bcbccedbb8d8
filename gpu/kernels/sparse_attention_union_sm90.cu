// SPDX-License-Identifier: MIT
// One producer thread streams queries, keys and values (TMA); two consumer warpgroups hold 64 rows
// each. The product Q K^T of the next block runs beside P V of the last one and the softmax
// between them. Persistent: the producer runs ahead into the next tile.
#include <algorithm>

#include "gpu/device/score_tiles_sm90.cuh"
#include "gpu/kernels/sparse_attention_union_sm90.h"

namespace msa::gpu {
namespace {

using namespace sm90;

constexpr int kWarp = 32;
constexpr int kStages = 2;
constexpr float kLog2E = 1.44269504F;

__device__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/// One warp per (tile, group) merges the ascending ids of its queries.
__global__ void merge_ids(const __grid_constant__ UnionArgs args) {
    const int64_t item = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / kWarp;
    if (item >= int64_t{args.tile_count} * args.groups) return;
    const int lane = threadIdx.x % kWarp;
    const QueryTile tile = args.tiles[item / args.groups];
    const int group = static_cast<int>(item % args.groups);
    const int queries = kUnionRows * args.groups / args.query_heads;
    const int32_t* const ids =
        args.ids + ((tile.query + lane) * args.groups + group) * args.top_k;
    UnionBlock* const to = args.blocks + item * queries * args.top_k;
    const int length = lane < tile.queries ? args.top_k : 0;
    int at = 0, count = 0;
    auto current = [&] { return at < length ? static_cast<uint32_t>(ids[at]) : UINT32_MAX; };
    for (uint32_t mine = current();;) {  // -1 is the largest
        const uint32_t lowest = __reduce_min_sync(0xFFFFFFFF, mine);
        if (lowest == UINT32_MAX) break;
        const uint32_t owners = __ballot_sync(0xFFFFFFFF, mine == lowest);
        if (lane == 0) to[count] = {static_cast<int32_t>(lowest), owners};
        ++count;
        if (mine == lowest) ++at, mine = current();
    }
    if (lane == 0) args.counts[item] = count;
}

template <int Dim, int BlockSize>
struct Shape {
    static constexpr int kBoxes = Dim / 64;
    static constexpr int kQueryBox = kUnionRows * kSwizzle;  // bytes
    static constexpr int kKeyBox = BlockSize * kSwizzle;
    static constexpr int kQueryBytes = kBoxes * kQueryBox;
    static constexpr int kKeyBytes = kBoxes * kKeyBox;
};

template <int Dim, int BlockSize>
struct Shared {
    using S = Shape<Dim, BlockSize>;
    char q[S::kQueryBytes];
    char k[kStages][S::kKeyBytes];
    char v[kStages][S::kKeyBytes];
    UnionBlock blocks[kStages];
    Ring<kStages> k_ring, v_ring;
    Barrier q_full, q_empty;
};

/// Work item of a persistent block: group major, so that the blocks that run together share keys.
struct Item {
    QueryTile tile;
    int group, count;
    const UnionBlock* blocks;

    __device__ Item(const UnionArgs& args, int64_t index) {
        const int64_t at = index % args.tile_count;
        group = static_cast<int>(index / args.tile_count);
        tile = args.tiles[at];
        const int64_t list = at * args.groups + group;
        count = args.counts[list];
        blocks = args.blocks +
                 list * args.top_k * (kUnionRows * args.groups / args.query_heads);
    }
};

template <int Dim, int BlockSize>
__device__ void produce_blocks(const UnionArgs& args, Shared<Dim, BlockSize>& shared) {
    using S = Shape<Dim, BlockSize>;
    Cursor<kStages> at;
    uint32_t q_parity = 1;
    const int heads = args.query_heads / args.groups;
    const int64_t items = int64_t{args.tile_count} * args.groups;
    for (int64_t index = blockIdx.x; index < items; index += gridDim.x) {
        const Item item(args, index);
        if (item.count == 0) continue;
        shared.q_empty.wait(q_parity);
        q_parity ^= 1;
        shared.q_full.expect(S::kQueryBytes);
        for (int box = 0; box < S::kBoxes; ++box)
            copy_box(shared.q + box * S::kQueryBox, &args.q, 64 * box, item.group * heads,
                     static_cast<int>(item.tile.query), &shared.q_full);
        UnionBlock next = item.blocks[0];
        for (int n = 0; n < item.count; ++n, at.advance()) {
            const UnionBlock block = next;
            if (n + 1 < item.count) next = item.blocks[n + 1];
            const int row = static_cast<int>(item.tile.key) + block.block * BlockSize;
            Barrier &k_full = shared.k_ring.full[at.stage], &v_full = shared.v_ring.full[at.stage];
            shared.k_ring.empty[at.stage].wait(at.parity ^ 1);
            shared.blocks[at.stage] = block;
            k_full.expect(S::kKeyBytes);
            for (int box = 0; box < S::kBoxes; ++box)
                copy_box(shared.k[at.stage] + box * S::kKeyBox, &args.k,
                         item.group * Dim + 64 * box, row, &k_full);
            shared.v_ring.empty[at.stage].wait(at.parity ^ 1);
            v_full.expect(S::kKeyBytes);
            for (int box = 0; box < S::kBoxes; ++box)
                copy_box(shared.v[at.stage] + box * S::kKeyBox, &args.v,
                         item.group * Dim + 64 * box, row, &v_full);
        }
    }
}

/// Starts sum = 64 rows of Q times the block's keys.
template <int Dim, int BlockSize>
__device__ void start_scores(float (&sum)[BlockSize / 2], const char* q, const char* k) {
    using S = Shape<Dim, BlockSize>;
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < Dim / 16; ++s)
        multiply_bf16(sum, swizzled_operand(q + s / 4 * S::kQueryBox + s % 4 * 32),
                      swizzled_operand(k + s / 4 * S::kKeyBox + s % 4 * 32), s > 0);
    wgmma_commit();
}

/// Starts out += P times the block's values.
template <int Dim, int BlockSize>
__device__ void start_values(float (&out)[Dim / 2], const uint32_t (&p)[BlockSize / 4],
                             const char* v, bool add) {
    using S = Shape<Dim, BlockSize>;
    wgmma_fence();
#pragma unroll
    for (int s = 0; s < BlockSize / 16; ++s)
        multiply_bf16<true>(out, p + 4 * s,
                            swizzled_operand(v + s * 16 * kSwizzle, S::kKeyBox), add || s > 0);
    wgmma_commit();
}

/// Running softmax of this thread's two rows.
struct Softmax {
    float best[2] = {-INFINITY, -INFINITY};
    float total[2] = {0, 0};  // of this thread's columns

    /// sum becomes 2^(scale (sum - best)), 0 where masked; returns the factors of earlier results.
    /// A row with `seen` <= 0 is not touched by the block; `seen` keys of it are visible.
    template <int Sums>
    __device__ void step(float (&sum)[Sums], const int (&seen)[2], float scale,
                         float (&factor)[2]) {
        constexpr int kColumns = 2 * Sums;
        if (__all_sync(0xFFFFFFFF, seen[0] <= 0 && seen[1] <= 0)) {
            factor[0] = factor[1] = 1;
#pragma unroll
            for (float& x : sum) x = 0;
            return;
        }
        const int first_column = 2 * (threadIdx.x % 4);
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            if (seen[side] < kColumns) {
#pragma unroll
                for (int j = 0; j < Sums / 4; ++j)
#pragma unroll
                    for (int i = 0; i < 2; ++i)
                        if (8 * j + first_column + i >= seen[side])
                            sum[4 * j + 2 * side + i] = -INFINITY;
            }
            float m[2] = {best[side], best[side]};
#pragma unroll
            for (int j = 0; j < Sums / 4; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) m[i] = fmaxf(m[i], sum[4 * j + 2 * side + i]);
            float now = fmaxf(m[0], m[1]);
            now = fmaxf(now, __shfl_xor_sync(0xFFFFFFFF, now, 1));
            now = fmaxf(now, __shfl_xor_sync(0xFFFFFFFF, now, 2));
            const float shift = now == -INFINITY ? 0 : now * scale;
            factor[side] = exp2_fast(fmaf(best[side], scale, -shift));
            best[side] = now;
            float t[2] = {0, 0};
#pragma unroll
            for (int j = 0; j < Sums / 4; ++j)
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float& x = sum[4 * j + 2 * side + i];
                    x = exp2_fast(fmaf(x, scale, -shift));
                    t[i] += x;
                }
            total[side] = fmaf(total[side], factor[side], t[0] + t[1]);
        }
    }
};

__device__ uint32_t pack(float low, float high) {
    const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&two);
}

template <int Dim, int BlockSize>
__global__ void __launch_bounds__(kTileThreads, 1)
    union_attention(const __grid_constant__ UnionArgs args) {
    extern __shared__ __align__(1024) char memory[];
    auto& shared = *reinterpret_cast<Shared<Dim, BlockSize>*>(memory);
    using S = Shape<Dim, BlockSize>;
    if (threadIdx.x == 0) {
        shared.k_ring.init();
        shared.v_ring.init();
        shared.q_full.init(1);
        shared.q_empty.init(kConsumerWarps);
        fence_barriers();
    }
    __syncthreads();
    const int warpgroup = threadIdx.x / kWarpgroup;
    if (warpgroup == kConsumers) {
        fewer_registers<24>();
        if (threadIdx.x % kWarpgroup == 0) produce_blocks(args, shared);
        return;
    }
    more_registers<240>();

    const int heads = args.query_heads / args.groups;
    const bool leader = threadIdx.x % kWarp == 0;  // releases for its warp
    const int lane = threadIdx.x % kWarp;
    const int row = warpgroup * 64 + threadIdx.x % kWarpgroup / kWarp * 16 + lane / 4;
    const int query[2] = {row / heads, (row + 8) / heads};
    const float scale = args.scale * kLog2E;
    const char* const q = shared.q + warpgroup * 64 * kSwizzle;
    Cursor<kStages> k_at, v_at;
    uint32_t q_parity = 0;
    const int64_t items = int64_t{args.tile_count} * args.groups;
    for (int64_t index = blockIdx.x; index < items; index += gridDim.x) {
        const Item item(args, index);
        int visible[2];
        for (int side = 0; side < 2; ++side)
            visible[side] = query[side] < item.tile.queries
                                ? args.visible[item.tile.query + query[side]]
                                : 0;
        float out[Dim / 2];
        Softmax softmax;
        if (item.count > 0) {
            uint32_t p[BlockSize / 4];
            float factor[2];
            auto take = [&](float(&sum)[BlockSize / 2]) {  // scores of the block at k_at
                const UnionBlock block = shared.blocks[k_at.stage];
                if (leader) shared.k_ring.empty[k_at.stage].arrive();
                k_at.advance();
                int seen[2];
                for (int side = 0; side < 2; ++side)
                    seen[side] = (block.queries >> query[side]) & 1
                                     ? visible[side] - block.block * BlockSize
                                     : 0;
                softmax.step(sum, seen, scale, factor);
            };
            auto keep_p = [&](const float(&sum)[BlockSize / 2]) {
#pragma unroll
                for (int i = 0; i < BlockSize / 4; ++i) p[i] = pack(sum[2 * i], sum[2 * i + 1]);
            };
            shared.q_full.wait(q_parity);
            shared.k_ring.full[k_at.stage].wait(k_at.parity);
            {
                float sum[BlockSize / 2];
                start_scores<Dim, BlockSize>(sum, q, shared.k[k_at.stage]);
                wgmma_wait<0>();
                take(sum);
                keep_p(sum);
            }
            for (int n = 1; n < item.count; ++n) {
                float sum[BlockSize / 2];
                shared.k_ring.full[k_at.stage].wait(k_at.parity);
                start_scores<Dim, BlockSize>(sum, q, shared.k[k_at.stage]);
                shared.v_ring.full[v_at.stage].wait(v_at.parity);
                start_values<Dim, BlockSize>(out, p, shared.v[v_at.stage], n > 1);
                wgmma_wait<1>();
                take(sum);
                wgmma_wait<0>();
                if (leader) shared.v_ring.empty[v_at.stage].arrive();
                v_at.advance();
                if (__any_sync(0xFFFFFFFF, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
                    for (int i = 0; i < Dim / 2; ++i) out[i] *= factor[i / 2 % 2];
                }
                keep_p(sum);
            }
            if (leader) shared.q_empty.arrive();
            q_parity ^= 1;
            shared.v_ring.full[v_at.stage].wait(v_at.parity);
            start_values<Dim, BlockSize>(out, p, shared.v[v_at.stage], item.count > 1);
            wgmma_wait<0>();
            if (leader) shared.v_ring.empty[v_at.stage].arrive();
            v_at.advance();
        }
#pragma unroll
        for (int side = 0; side < 2; ++side) {
            float total = softmax.total[side];
            total += __shfl_xor_sync(0xFFFFFFFF, total, 1);
            total += __shfl_xor_sync(0xFFFFFFFF, total, 2);
            if (query[side] >= item.tile.queries) continue;
            const bool any = softmax.best[side] != -INFINITY;
            const float factor = any ? 1 / total : 0;
            const int64_t out_row = (item.tile.query + query[side]) * args.query_heads +
                                    item.group * heads + (row + 8 * side) % heads;
            auto* const to = static_cast<uint32_t*>(args.out) + out_row * (Dim / 2) + lane % 4;
#pragma unroll
            for (int j = 0; j < Dim / 8; ++j)
                to[4 * j] = any ? pack(out[4 * j + 2 * side] * factor,
                                       out[4 * j + 2 * side + 1] * factor)
                                : 0;
            if (lane % 4 == 0)
                args.lse[out_row] =
                    any ? fmaf(softmax.best[side], args.scale, logf(total)) : -INFINITY;
        }
    }
}

template <int Dim, int BlockSize>
cudaError_t launch(const UnionArgs& args, cudaStream_t stream) {
    constexpr int kBytes = sizeof(Shared<Dim, BlockSize>);
    auto* const kernel = union_attention<Dim, BlockSize>;
    cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    if (error != cudaSuccess) return error;
    int device = 0, processors = 0;
    error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return error;
    constexpr int kThreads = 128;
    const int64_t items = int64_t{args.tile_count} * args.groups;
    merge_ids<<<static_cast<unsigned>((items * kWarp + kThreads - 1) / kThreads), kThreads, 0,
                stream>>>(args);
    kernel<<<static_cast<unsigned>(std::min<int64_t>(items, processors)), kTileThreads, kBytes,
             stream>>>(args);
    return cudaGetLastError();
}

}  // namespace

cudaError_t launch_sparse_attention_union_sm90(const UnionArgs& args, cudaStream_t stream) {
    if (args.head_dim == 128)
        return args.block_size == 128 ? launch<128, 128>(args, stream)
                                      : launch<128, 64>(args, stream);
    return args.block_size == 128 ? launch<64, 128>(args, stream) : launch<64, 64>(args, stream);
}

}  // namespace msa::gpu
