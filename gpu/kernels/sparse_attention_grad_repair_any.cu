// SPDX-License-Identifier: MIT
// The tuned gradient multiplies masked probabilities (0) by keys that the query does not see, and
// by queries that do not see the key. If one of these is not finite, a gradient becomes NaN. Such
// rows and blocks are rare; they are marked and computed again here, only from operands that take
// part.
#include "gpu/device/key_grad.cuh"
#include "gpu/kernels/kernels.h"
#include "gpu/layout.h"

namespace msa::cuda {
namespace {

/// By whole thread blocks: body(i) for each i below `count` that is marked.
template <typename Body>
__device__ void for_each_marked(const int32_t* marked, int64_t count, Body body) {
    const int64_t step = int64_t{gridDim.x} * blockDim.x;
    for (int64_t first = int64_t{blockIdx.x} * blockDim.x; first < count; first += step) {
        const int64_t mine = first + threadIdx.x;
        if (!__syncthreads_or(mine < count && marked[mine] != 0)) continue;
        for (int64_t i = first; i < min(first + blockDim.x, count); ++i)
            if (marked[i] != 0) body(i);
    }
}

template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    repair_queries(BackwardInput<T> b, HeadTiling tiling, int64_t rows, const int32_t* marked,
                   Output d_q) {
    extern __shared__ float4 shared[];
    for_each_marked(marked, rows, [&](int64_t row) {
        const int64_t query = row / b.support.kv_heads, group = row % b.support.kv_heads;
        for (int part = 0; part < tiling.parts; ++part) {
            __syncthreads();
            query_gradient(
                b, group,
                [&](int r) {
                    return tiling.row(r, {query, query + 1}, group, part, b.heads.heads,
                                      b.support.visible);
                },
                b.support.spans(), [&](int64_t slot) { return b.support.span(query, group, slot); },
                d_q, &shared[0].x);
        }
    });
}

template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    repair_keys(BackwardInput<T> b, const SequenceBlock* blocks, int64_t count,
                const int32_t* marked, Output d_k, Output d_v) {
    extern __shared__ float4 shared[];
    const int rows = tile_rows(b.heads.width);
    const int64_t tiles = (b.support.block_size + rows - 1) / rows;
    for_each_marked(marked, count, [&](int64_t i) {
        const SequenceBlock block = blocks[i / b.support.kv_heads];
        const BlockQueries queries{nullptr, block.queries.begin,
                                   block.queries.end - block.queries.begin, block.block,
                                   i % b.support.kv_heads};
        for (int64_t tile = 0; tile < tiles; ++tile)
            if (const KeyRange keys = key_tile(block, tile, rows); keys.count > 0)
                key_gradient(b, keys, queries, d_k, d_v, &shared[0].x);
    });
}

}  // namespace

void sparse_attention_grad_repair_any(const Call& call, const AttentionInput& in,
                                      View<const int32_t, 3> ids, const AttentionSaved& saved,
                                      const AttentionGradient& to, const float* delta,
                                      const GradMarks& marked) {
    constexpr int64_t kBlocks = 512;
    const Problem& p = call.problem;
    const auto& blocks = call.layout->key_blocks();
    const auto grid = [kBlocks](int64_t count, int warps) {
        return static_cast<unsigned>(std::min(ceil_div(count, warps * kWarp), kBlocks));
    };
    const HeadTiling tiling = tile_heads(p.group_size(), 1, p.head_dim);
    const int64_t rows = p.queries() * p.kv_heads, lists = blocks.size() * p.kv_heads;
    by_element(in.q.element(), [&]<typename T>() {
        const BackwardInput<T> b{main_heads<T>(p, call.layout, in.q, in.k, in.v),
                                 key_support(call, ids),
                                 operand(saved.d_out),
                                 saved.lse.data(),
                                 delta,
                                 nullptr};
        launch_backward(call, repair_queries<T>, grid(rows, tiling.warps()), tiling.warps(), b,
                        tiling, rows, marked.rows, output(to.d_q));
        check_launch("sparse_attention_grad_repair, queries");
        const int warps = tile_warps(tile_rows(p.head_dim), p.head_dim);
        launch_backward(call, repair_keys<T>, grid(lists, warps), warps, b, blocks.data(), lists,
                        marked.blocks, output(to.d_k), output(to.d_v));
        check_launch("sparse_attention_grad_repair, keys");
    });
}

}  // namespace msa::cuda
