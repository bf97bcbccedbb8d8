// SPDX-License-Identifier: MIT
// P_b of the recall definitions, with one thread block per query and group. It computes the lse of
// the heads first. Then it sums each block's probabilities per head, and over the heads in order.
#include "gpu/device/max_or_nan.cuh"
#include "gpu/device/support.cuh"
#include "gpu/kernels/kernels.h"

namespace msa::cuda {
namespace {

constexpr int kMostWarps = kTileThreads / kWarp;

/// What a block is to some of a group's heads: probability, summed over keys and heads, and the
/// largest logit.
struct BlockSum {
    float mass, max_logit;
};

/// The warp's heads, the tile's row 0 being `first_head` of the group, and the packed `keys`; `lse`
/// of the query's heads. All lanes get the result.
template <typename T>
__device__ BlockSum sum_block(const Heads<T>& in, int64_t group, int64_t first_head, KeyRange keys,
                              const float* lse, const float* rows, float* tile) {
    const auto [first_row, first_dim] = warp_place(in.width);
    BlockSum sum{0, -INFINITY};
    for (int64_t at = 0; at < keys.count; at += kPlainTileKeys) {
        const int seen = keys_before(keys.count, at);
        __syncthreads();
        stage(tile, kPlainTileKeys, in.width,
              [&](int j) { return j < seen ? in.key(keys.first + at + j, group) : nullptr; });
        __syncthreads();
        float dots[kRowsPerWarp];
        dot_products(rows + first_row * tile_stride(in.width), tile, in.width, dots);
#pragma unroll
        for (int r = 0; r < kRowsPerWarp; ++r) {
            const int64_t head = first_head + first_row + r;
            // Of two warps of a row, the first one counts it.
            if (head >= in.heads || lane_id() >= seen || first_dim > 0) continue;
            const float logit = in.logit(dots[r]);
            sum.mass += expf(logit - lse[group * in.heads + head]);
            sum.max_logit = max_or_nan(sum.max_logit, logit);
        }
    }
    return {warp_sum(sum.mass), warp_max_or_nan(sum.max_logit)};
}

template <typename T>
__global__ void block_mass_kernel(Heads<T> in, const KeyRange* visible, const float* lse,
                                  int64_t block_size, int64_t blocks, float* mass,
                                  float* max_logit) {
    extern __shared__ float4 shared[];
    __shared__ BlockSum of_warp[kMostWarps];
    const int64_t query = blockIdx.x, group = blockIdx.y;
    const KeyRange seen = visible[query];
    const int most_heads = block_rows(in.width), warps = static_cast<int>(blockDim.x) / kWarp;
    const RowsAndKeys tiles(most_heads, in.width);
    float *const rows = &shared[0].x + tiles.rows, *const tile = &shared[0].x + tiles.keys;
    mass += (query * gridDim.y + group) * blocks;
    if (max_logit != nullptr) max_logit += (query * gridDim.y + group) * blocks;
    const int64_t window = window_start(seen.count, in.window);
    const int64_t first_block = window / block_size;
    const int64_t seen_blocks = visible_blocks(seen.count, block_size);
    for (int64_t b = threadIdx.x; b < blocks; b += blockDim.x) {
        if (first_block <= b && b < seen_blocks) continue;
        mass[b] = 0;
        if (max_logit != nullptr) max_logit[b] = -INFINITY;
    }
    for (int64_t first_head = 0; first_head < in.heads; first_head += most_heads) {
        __syncthreads();
        stage(rows, most_heads, in.width, [&](int r) {
            const int64_t head = first_head + r;
            return head < in.heads ? in.query(query, group * in.heads + head) : nullptr;
        });
        for (int64_t b = first_block; b < seen_blocks; ++b) {
            const int64_t first = max(window, b * block_size);
            const int64_t end = min(seen.count, (b + 1) * block_size);
            const BlockSum mine =
                sum_block(in, group, first_head, {seen.first + first, end - first},
                          lse + query * in.row_heads, rows, tile);
            if (lane_id() == 0) of_warp[warp_id()] = mine;
            __syncthreads();  // of_warp is free again behind the barriers of the next sum_block
            if (threadIdx.x != 0) continue;
            BlockSum all{0, -INFINITY};
            if (first_head > 0) all = {mass[b], max_logit == nullptr ? 0.0F : max_logit[b]};
            for (int w = 0; w < warps; ++w) {
                const BlockSum& part = of_warp[w];
                all.mass += part.mass / static_cast<float>(in.heads);
                all.max_logit = max_or_nan(all.max_logit, part.max_logit);
            }
            mass[b] = all.mass;
            if (max_logit != nullptr) max_logit[b] = all.max_logit;
        }
    }
}

}  // namespace

void block_mass_any(const Call& call, const BlockMassInput& in, const BlockMassOutput& to) {
    const Problem& p = call.problem;
    if (p.queries() == 0) return;
    Tensor<float, 2> lse = call.scratch<float, 2>({p.queries(), p.query_heads});
    const dim3 grid(static_cast<unsigned>(p.queries()), static_cast<unsigned>(p.kv_heads));
    by_element(in.q.element(), [&]<typename T>() {
        const Heads<T> heads = main_heads<T>(p, call.layout, in.q, in.k, {});
        attend_to_support(call, heads, key_support(call, {}), {}, lse.data());
        add_sinks_any(call, in.sinks, {}, lse);
        launch_attend(call, block_mass_kernel<T>, grid,
                      tile_warps(tile_rows(p.head_dim), p.head_dim), p.head_dim, heads,
                      call.visible, lse.data(), p.block_size, p.blocks(), to.mass.data(),
                      to.max_logit.data());
    });
    check_launch("block_mass_any");
}

}  // namespace msa::cuda
