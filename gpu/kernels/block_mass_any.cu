// SPDX-License-Identifier: MIT
// P_b of the recall definitions, one thread block per query and group. The lse of the heads is made
// first; then each block's probabilities are summed, per head, and over the heads in order.
#include "gpu/device/max_or_nan.cuh"
#include "gpu/device/support.cuh"
#include "gpu/kernels/kernels.h"

namespace msa::cuda {
namespace {

constexpr int kWarps = kTileRows / kRowsPerWarp;

template <typename T>
__global__ void block_mass_kernel(Heads<T> in, const KeyRange* visible, const float* lse,
                                  int64_t block_size, int64_t blocks, float* mass,
                                  float* max_logit) {
    extern __shared__ float4 shared[];
    __shared__ float warp_mass[kWarps], warp_top[kWarps];
    const int64_t query = blockIdx.x, group = blockIdx.y;
    const KeyRange seen = visible[query];
    const int stride = tile_stride(in.width), first_row = warp_id() * kRowsPerWarp;
    float* rows = &shared[0].x;
    float* keys = rows + kTileRows * stride;
    mass += (query * gridDim.y + group) * blocks;
    if (max_logit != nullptr) max_logit += (query * gridDim.y + group) * blocks;
    const int64_t seen_blocks = visible_blocks(seen.count, block_size);
    for (int64_t b = seen_blocks + threadIdx.x; b < blocks; b += blockDim.x) {
        mass[b] = 0;
        if (max_logit != nullptr) max_logit[b] = -INFINITY;
    }
    const int parts = static_cast<int>(ceil_div(in.heads, kTileRows));
    for (int part = 0; part < parts; ++part) {
        const auto head_of = [&](int r) { return int64_t{part} * kTileRows + r; };
        __syncthreads();
        stage(rows, kTileRows, in.width, [&](int r) {
            return head_of(r) < in.heads ? in.query(query, group * in.heads + head_of(r)) : nullptr;
        });
        for (int64_t b = 0; b < seen_blocks; ++b) {
            float sum = 0, top = -INFINITY;  // of the warp's rows
            const int64_t end = seen.first + min((b + 1) * block_size, seen.count);
            for (int64_t first = seen.first + b * block_size; first < end; first += kTileKeys) {
                __syncthreads();
                stage(keys, kTileKeys, in.width,
                      [&](int j) { return first + j < end ? in.key(first + j, group) : nullptr; });
                __syncthreads();
                float dots[kRowsPerWarp];
                dot_products(rows + first_row * stride, keys, in.width, dots);
#pragma unroll
                for (int r = 0; r < kRowsPerWarp; ++r) {
                    const int64_t head = head_of(first_row + r);
                    if (head >= in.heads || lane_id() >= keys_before(end, first)) continue;
                    const float logit = in.scale * dots[r];
                    sum += expf(logit - lse[query * in.row_heads + group * in.heads + head]);
                    top = max_or_nan(top, logit);
                }
            }
            sum = warp_sum(sum);
            top = warp_max_or_nan(top);
            if (lane_id() == 0) {
                warp_mass[warp_id()] = sum;
                warp_top[warp_id()] = top;
            }
            __syncthreads();
            if (threadIdx.x != 0) continue;
            float block_mass = part == 0 ? 0 : mass[b];
            float block_top = part == 0 || max_logit == nullptr ? -INFINITY : max_logit[b];
            for (int w = 0; w < kWarps; ++w) {
                block_mass += warp_mass[w] / static_cast<float>(in.heads);
                block_top = max_or_nan(block_top, warp_top[w]);
            }
            mass[b] = block_mass;
            if (max_logit != nullptr) max_logit[b] = block_top;
        }
    }
}

}  // namespace

void block_mass_any(const Call& call, In<3> q, In<3> k, const BlockMassOutput& to) {
    const Problem& p = call.problem;
    if (p.queries() == 0) return;
    Tensor<float, 2> lse = call.scratch<float, 2>({p.queries(), p.query_heads});
    const dim3 grid(static_cast<unsigned>(p.queries()), static_cast<unsigned>(p.kv_heads));
    by_element(q.element(), [&]<typename T>() {
        const Heads<T> heads = main_heads<T>(p, q, k, {});
        attend_to_support(call, heads, key_support(call, {}), {}, lse.data());
        launch_attend(call, block_mass_kernel<T>, grid, kWarps, p.head_dim, heads, call.visible,
                      lse.data(), p.block_size, p.blocks(), to.mass.data(), to.max_logit.data());
    });
    check_launch("block_mass_any");
}

}  // namespace msa::cuda
