// SPDX-License-Identifier: MIT
// eq:msa-sparse-attn, key blocks outermost (sec:kernel:sparse_attn). Phase 1, one thread block per
// chunk of the schedule: the chunk's queries attend to its block, into slots. Phase 2 combines the
// slots of each row. The host makes the schedule, so the ids are copied to the host: this kernel
// checks the tuned one and is not fast.
#include "core/schedule.h"
#include "gpu/device/attend.cuh"
#include "gpu/kernels/kernels.h"
#include "gpu/kernels/pieces.h"

namespace msa::cuda {
namespace {

/// Partial results [queries, Hq, k, dh] and their lse [queries, Hq, k].
struct Slots {
    float *out, *lse;
    int64_t top_k;
};

template <typename T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    attend_chunks_kernel(Heads<T> in, HeadTiling tiling, const BlockChunk* chunks,
                         const SelectedQuery* selected, const KeyRange* visible, int64_t block_size,
                         Slots slots) {
    extern __shared__ float4 shared[];
    const BlockChunk chunk = chunks[blockIdx.x];
    for (int64_t begin = chunk.begin; begin < chunk.end; begin += tiling.queries) {
        // Rows are places in the chunk's list; which query stands there comes second.
        const QueryRange places{begin, min(begin + tiling.queries, chunk.end)};
        const auto place_of = [&](int r) { return begin + r / tiling.heads; };
        const auto row_of = [&](int r) -> TileRow {
            const int64_t place = place_of(r), part_head = blockIdx.y * tiling.heads;
            const int64_t head = part_head + r % tiling.heads;
            if (place >= places.end || head >= in.heads) return {};
            const int64_t query = selected[place].query;
            return tile_row(query, chunk.group * in.heads + head, visible[query], in.window);
        };
        // Positions do not decrease within a sequence: the last query sees most of the block.
        const KeyRange most = visible[selected[places.end - 1].query];
        const int64_t first = chunk.block * block_size;
        const KeyRange span{most.first + first, min(block_size, most.count - first)};
        Attended state;
        __syncthreads();
        attend(
            in, chunk.group, row_of, 1, [&](int64_t) { return span; }, &shared[0].x, state);
        const int warp_row = warp_place(in.width).row;
        finish_rows(
            state, row_of, in.width,
            [&](const TileRow& row, int r) {
                const int64_t slot = selected[place_of(warp_row + r)].slot;
                return in.number(row) * slots.top_k + slot;
            },
            Output{slots.out, Element::f32}, slots.lse);
    }
}

/// One warp per (query, head), and per 256 channels.
__global__ void combine_slots_kernel(Slots slots, const int32_t* ids, int64_t rows, int64_t heads,
                                     int64_t kv_heads, int width, Output out, float* lse) {
    const int64_t row = int64_t{blockIdx.x} * (blockDim.x / kWarp) + warp_id();
    if (row >= rows) return;
    const int64_t query = row / heads, group = row % heads / (heads / kv_heads);
    ids += (query * kv_heads + group) * slots.top_k;
    const float* from = slots.out + row * slots.top_k * width;
    const float* partial = slots.lse + row * slots.top_k;
    int64_t used = 0;
    const int first_dim = static_cast<int>(blockIdx.y) * kWarpDims + lane_id();
    float top = -INFINITY, sum = 0, sums[kDimsPerLane] = {};
    for (; used < slots.top_k && ids[used] != kNoBlock; ++used) top = fmaxf(top, partial[used]);
    for (int64_t slot = 0; slot < used; ++slot) {
        // A block before the window has nothing, top too where all are.
        const float weight = partial[slot] == -INFINITY ? 0.0F : expf(partial[slot] - top);
        sum += weight;
#pragma unroll
        for (int i = 0; i < kDimsPerLane; ++i)
            if (const int d = first_dim + i * kWarp; d < width)
                sums[i] += weight * from[slot * width + d];
    }
#pragma unroll
    for (int i = 0; i < kDimsPerLane; ++i)
        if (const int d = first_dim + i * kWarp; d < width)
            out.store(row * width + d, sum == 0 ? 0.0F : sums[i] / sum);
    if (first_dim == 0) lse[row] = sum == 0 ? -INFINITY : top + logf(sum);
}

Tensor<int32_t, 3> on_host(const Call& call, View<const int32_t, 3> ids) {
    require_host_copies(*call.owner);
    Tensor<int32_t, 3> host(ids.shape());
    check(
        cudaMemcpyAsync(host.data(), ids.data(), static_cast<size_t>(ids.size()) * sizeof(int32_t),
                        cudaMemcpyDeviceToHost, call.stream()),
        "copying ids to the host");
    check(cudaStreamSynchronize(call.stream()), "copying ids to the host");
    return host;
}

void attend_piece(const Call& call, const Layout* layout, const AttentionInput& in,
                  View<const int32_t, 3> ids, const AttentionOutput& to) {
    const Problem& p = call.problem;
    const int64_t top_k = ids.extent(2), rows = p.queries() * p.query_heads;
    const KvOuterSchedule schedule =
        schedule_kv_outer(p, on_host(call, ids), 2 * top_k * p.block_size);
    const Tensor<BlockChunk, 1> chunks = call.upload(schedule.chunks);
    const Tensor<SelectedQuery, 1> selected = call.upload(schedule.queries);
    Tensor<float, 3> out = call.scratch<float, 3>({rows, top_k, p.head_dim});
    Tensor<float, 2> lse = call.scratch<float, 2>({rows, top_k});
    const Slots slots{out.data(), lse.data(), top_k};
    const HeadTiling tiling = tile_heads(p.group_size(), p.queries(), p.head_dim);
    const dim3 grid(static_cast<unsigned>(chunks.size()), static_cast<unsigned>(tiling.parts));
    by_index_element(in.q.element(), [&]<typename T>() {
        launch_attend(call, attend_chunks_kernel<T>, grid, tiling.warps(), p.head_dim,
                      sparse_heads<T>(p, layout, in), tiling, chunks.data(), selected.data(),
                      call.visible, p.block_size, slots);
    });
    check_launch("sparse_attention_kv_outer_any, phase 1");
    constexpr int kWarps = 8;
    const dim3 warps(static_cast<unsigned>(ceil_div(rows, kWarps)),
                     static_cast<unsigned>(row_warps(p.head_dim)));
    combine_slots_kernel<<<warps, kWarps * kWarp, 0, call.stream()>>>(
        slots, ids.data(), rows, p.query_heads, p.kv_heads, static_cast<int>(p.head_dim),
        output(to.out), to.lse.data());
    check_launch("sparse_attention_kv_outer_any, phase 2");
}

}  // namespace

void sparse_attention_kv_outer_any(const Call& call, const AttentionInput& in,
                                   View<const int32_t, 3> ids, const AttentionOutput& to) {
    const Problem& p = call.problem;
    const int64_t slot_bytes =
        p.query_heads * ids.extent(2) * (p.head_dim + 1) * int64_t{sizeof(float)};
    for_each_piece(call, slot_bytes, [&](const Call& piece, QueryRange queries) {
        const int64_t count = queries.end - queries.begin;
        OperandScales scales = in.scales;
        if (scales.q.size() > 1) scales.q = scales.q.slice(queries.begin, count);
        attend_piece(piece, call.layout, {slice(in.q, queries), in.k, in.v, {}, scales},
                     ids.slice(queries.begin, count),
                     {slice(to.out, queries), to.lse.slice(queries.begin, count)});
    });
}

}  // namespace msa::cuda
