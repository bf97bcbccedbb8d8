// SPDX-License-Identifier: MIT
// Gradients of eq:softmax-attention and eq:msa-sparse-attn: d_q by query, d_k and d_v by key. The
// reverse index of ids lists the queries of a key. No atomics: every sum has one order.
#include "gpu/device/key_grad.cuh"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/reverse_index.h"
#include "gpu/layout.h"

namespace msa::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>(ceil_div(threads, kThreads)); }

/// A warp per row.
__global__ void __launch_bounds__(kThreads)
    row_products(Operand a, Operand b, int64_t rows, int width, float* to, const int32_t* only_if) {
    if (only_if != nullptr && *only_if == 0) return;
    const int64_t row = int64_t{blockIdx.x} * (kThreads / kWarp) + warp_id();
    if (row >= rows) return;
    float sum = 0;
    for (int d = lane_id(); d < width; d += kWarp)
        sum = fmaf(a.at(row * width + d), b.at(row * width + d), sum);
    sum = warp_sum(sum);
    if (lane_id() == 0) to[row] = sum;
}

/// Part blockIdx.x of the queries, a thread per head: sum of exp(sink - lse) delta.
__global__ void __launch_bounds__(kThreads)
    sink_parts(const float* sinks, const float* lse, const float* delta, int64_t queries, int heads,
               double* parts) {
    const int64_t each = (queries + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * each;
    const int64_t end = min(begin + each, queries);
    for (int head = static_cast<int>(threadIdx.x); head < heads; head += kThreads) {
        double sum = 0;
        for (int64_t query = begin; query < end; ++query) {
            const int64_t row = query * heads + head;
            if (lse[row] != -INFINITY)
                sum += double{expf(sinks[head] - lse[row])} * double{delta[row]};
        }
        parts[int64_t{blockIdx.x} * heads + head] = sum;
    }
}

__global__ void __launch_bounds__(kThreads)
    add_sink_parts(const double* parts, int count, int heads, float* d_sinks) {
    const int head = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
    if (head >= heads) return;
    double sum = 0;
    for (int part = 0; part < count; ++part) sum += parts[int64_t{part} * heads + head];
    d_sinks[head] = static_cast<float>(-sum);
}

/// A thread block per tile of queries, group and part of its heads.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    dense_queries(BackwardInput<T> b, HeadTiling tiling, const QueryTile* tiles, Output d_q) {
    if (b.is_off()) return;
    extern __shared__ float4 shared[];
    const QueryTile tile = tiles[blockIdx.x];
    const QueryRange queries{tile.query, tile.query + tile.queries};
    query_gradient(
        b, blockIdx.y,
        [&](int r) {
            return tiling.row(r, queries, blockIdx.y, blockIdx.z, b.heads.heads, b.support.visible);
        },
        1, [&](int64_t) { return b.support.visible[queries.end - 1]; }, d_q, &shared[0].x);
}

/// A thread block per query, group and part of its heads.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    sparse_queries(BackwardInput<T> b, HeadTiling tiling, Output d_q) {
    extern __shared__ float4 shared[];
    const int64_t query = blockIdx.x, group = blockIdx.y;
    query_gradient(
        b, group,
        [&](int r) {
            return tiling.row(r, {query, query + 1}, group, blockIdx.z, b.heads.heads,
                              b.support.visible);
        },
        b.support.spans(), [&](int64_t slot) { return b.support.span(query, group, slot); }, d_q,
        &shared[0].x);
}

/// A thread block per block of keys, group and tile of the block's keys.
template <typename T>
__global__ void __launch_bounds__(kTileThreads)
    block_keys(BackwardInput<T> b, const SequenceBlock* blocks, ReverseIndex index, Output d_k,
               Output d_v) {
    if (b.is_off()) return;
    extern __shared__ float4 shared[];
    const SequenceBlock block = blocks[blockIdx.x];
    const KeyRange keys = key_tile(block, blockIdx.z, tile_rows(b.heads.width));
    if (keys.count == 0) return;
    const int64_t group = blockIdx.y;
    BlockQueries queries{nullptr, block.queries.begin, block.queries.end - block.queries.begin,
                         block.block, group};
    if (index.starts != nullptr) {
        const int64_t* const starts = index.starts + group * gridDim.x + blockIdx.x;
        queries.listed = index.queries + starts[0];
        queries.count = starts[1] - starts[0];
    }
    key_gradient(b, keys, queries, d_k, d_v, &shared[0].x);
}

template <typename T>
void run_keys(const Call& call, const BackwardInput<T>& b, const ReverseIndex& index,
              const AttentionGradient& to) {
    const Problem& p = call.problem;
    const auto& blocks = call.layout->key_blocks();
    const int rows = tile_rows(p.head_dim);
    const dim3 grid(static_cast<unsigned>(blocks.size()), static_cast<unsigned>(p.kv_heads),
                    static_cast<unsigned>(ceil_div(p.block_size, rows)));
    launch_backward(call, block_keys<T>, grid, tile_warps(rows, p.head_dim), b, blocks.data(),
                    index, output(to.d_k), output(to.d_v));
    check_launch("attention_grad_any, keys");
}

}  // namespace

void output_gradient_products(const Call& call, const AttentionSaved& saved, float* delta,
                              const int32_t* only_if) {
    const int64_t rows = call.problem.queries() * call.problem.query_heads;
    if (rows == 0) return;
    row_products<<<blocks_for(rows * kWarp), kThreads, 0, call.stream()>>>(
        operand(saved.out), operand(saved.d_out), rows, static_cast<int>(call.problem.head_dim),
        delta, only_if);
    check_launch("attention_grad_any, delta");
}

void sink_gradient(const Call& call, View<const float, 1> sinks, const float* lse,
                   const float* delta, View<float, 1> d_sinks) {
    if (!d_sinks) return;
    constexpr int kParts = 512;
    const auto heads = static_cast<int>(call.problem.query_heads);
    auto parts = call.scratch<double, 1>({int64_t{kParts} * heads});
    sink_parts<<<kParts, kThreads, 0, call.stream()>>>(sinks.data(), lse, delta,
                                                       call.problem.queries(), heads, parts.data());
    add_sink_parts<<<blocks_for(heads), kThreads, 0, call.stream()>>>(parts.data(), kParts, heads,
                                                                      d_sinks.data());
    check_launch("attention_grad_any, sinks");
}

void dense_attention_grad_any(const Call& call, const AttentionInput& in,
                              const AttentionSaved& saved, const AttentionGradient& to,
                              const float* delta, const int32_t* only_if) {
    const Problem& p = call.problem;
    const HeadTiling tiling = tile_heads(p.group_size(), p.queries(), p.head_dim);
    const auto& tiles = call.layout->tiles(tiling.queries, TileOrder::longest_first).device;
    const dim3 grid(static_cast<unsigned>(tiles.size()), static_cast<unsigned>(p.kv_heads),
                    static_cast<unsigned>(tiling.parts));
    by_element(in.q.element(), [&]<typename T>() {
        const BackwardInput<T> b{main_heads<T>(p, call.layout, in.q, in.k, in.v),
                                 key_support(call, {}),
                                 operand(saved.d_out),
                                 saved.lse.data(),
                                 delta,
                                 only_if};
        launch_backward(call, dense_queries<T>, grid, tiling.warps(), b, tiling, tiles.data(),
                        output(to.d_q));
        check_launch("dense_attention_grad_any, queries");
        run_keys(call, b, {}, to);
    });
}

void sparse_attention_grad_any(const Call& call, const AttentionInput& in,
                               View<const int32_t, 3> ids, const AttentionSaved& saved,
                               const AttentionGradient& to, const float* delta) {
    const Problem& p = call.problem;
    const HeadTiling tiling = tile_heads(p.group_size(), 1, p.head_dim);
    const dim3 grid(static_cast<unsigned>(p.queries()), static_cast<unsigned>(p.kv_heads),
                    static_cast<unsigned>(tiling.parts));
    by_element(in.q.element(), [&]<typename T>() {
        const BackwardInput<T> b{main_heads<T>(p, call.layout, in.q, in.k, in.v),
                                 key_support(call, ids),
                                 operand(saved.d_out),
                                 saved.lse.data(),
                                 delta,
                                 nullptr};
        launch_backward(call, sparse_queries<T>, grid, tiling.warps(), b, tiling, output(to.d_q));
        check_launch("sparse_attention_grad_any, queries");
        if (ids.size() == 0) return run_keys(call, b, {}, to);  // no query: zeros
        const SortedUses uses(call, ids);
        run_keys(call, b, uses.index(), to);
    });
}

}  // namespace msa::cuda
