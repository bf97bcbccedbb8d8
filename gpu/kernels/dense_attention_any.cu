// SPDX-License-Identifier: MIT
// eq:softmax-attention, one thread block per tile of queries and group.
#include "gpu/device/attend.cuh"
#include "gpu/kernels/kernels.h"
#include "gpu/layout.h"

namespace msa::cuda {
namespace {

template <typename T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    dense_attention_kernel(Heads<T> in, HeadTiling tiling, const QueryTile* tiles,
                           const KeyRange* visible, Output out, float* lse,
                           const int32_t* only_if) {
    if (only_if != nullptr && *only_if == 0) return;
    extern __shared__ float4 shared[];
    const QueryTile tile = tiles[blockIdx.x];
    const QueryRange queries{tile.query, tile.query + tile.queries};
    const auto row_of = [&](int r) {
        return tiling.row(r, queries, blockIdx.y, blockIdx.z, in.heads, visible, in.window);
    };
    Attended state;
    attend(
        in, blockIdx.y, row_of, 1, [&](int64_t) { return visible[queries.end - 1]; }, &shared[0].x,
        state);
    finish_rows(
        state, row_of, in.width, [&](const TileRow& row, int) { return in.number(row); }, out, lse);
}

}  // namespace

void dense_attention_any(const Call& call, const AttentionInput& in, const AttentionOutput& to,
                         const int32_t* only_if) {
    const Problem& p = call.problem;
    const HeadTiling tiling = tile_heads(p.group_size(), p.queries(), p.head_dim);
    const auto& tiles = call.layout->tiles(tiling.queries, TileOrder::longest_first).device;
    const dim3 grid(static_cast<unsigned>(tiles.size()), static_cast<unsigned>(p.kv_heads),
                    static_cast<unsigned>(tiling.parts));
    by_element(in.q.element(), [&]<typename T>() {
        launch_attend(call, dense_attention_kernel<T>, grid, tiling.warps(), p.head_dim,
                      main_heads<T>(p, call.layout, in.q, in.k, in.v), tiling, tiles.data(),
                      call.visible, output(to.out), to.lse.data(), only_if);
    });
    check_launch("dense_attention_any");
}

}  // namespace msa::cuda
