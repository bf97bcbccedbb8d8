// SPDX-License-Identifier: MIT
// eq:msa-index-score, one thread block per tile of queries with all their groups: index_k is shared
// by the groups.
#include "gpu/device/attend.cuh"
#include "gpu/device/max_or_nan.cuh"
#include "gpu/kernels/kernels.h"

namespace msa::cuda {
namespace {

template <typename T>
__global__ void index_scores_kernel(Heads<T> in, HeadTiling tiling, const QueryRange* tiles,
                                    const KeyRange* visible, int64_t block_size, int64_t blocks,
                                    float* scores) {
    extern __shared__ float4 shared[];
    const QueryRange queries = tiles[blockIdx.x];
    const KeyRange span = visible[queries.end - 1];
    const int stride = tile_stride(in.width), first_row = warp_place(in.width).row;
    const RowsAndKeys tiles_at(block_rows(in.width), in.width);
    float *const rows = &shared[0].x + tiles_at.rows, *const keys = &shared[0].x + tiles_at.keys;
    const auto row_of = [&](int r) {
        return tiling.row(r, queries, 0, blockIdx.z, in.row_heads, visible);
    };
    stage_rows(in, row_of, rows);
    TileRow row[kRowsPerWarp];
    for (int r = 0; r < kRowsPerWarp; ++r) row[r] = row_of(first_row + r);
    for (int64_t b = 0; b < blocks; ++b) {
        float best[kRowsPerWarp];
        for (float& score : best) score = -INFINITY;
        const int64_t end = span.first + min((b + 1) * block_size, span.count);
        for (int64_t first = span.first + b * block_size; first < end; first += kPlainTileKeys) {
            __syncthreads();
            stage(keys, kPlainTileKeys, in.width,
                  [&](int j) { return first + j < end ? in.key(first + j, 0) : nullptr; });
            __syncthreads();
            float dots[kRowsPerWarp];
            dot_products(rows + first_row * stride, keys, in.width, dots);
#pragma unroll
            for (int r = 0; r < kRowsPerWarp; ++r)
                if (lane_id() < keys_before(min(end, row[r].end), first))
                    best[r] = max_or_nan(best[r], dots[r]);
        }
#pragma unroll
        for (int r = 0; r < kRowsPerWarp; ++r) {
            const float largest = warp_max_or_nan(best[r]);
            if (row[r].query < 0 || lane_id() != 0) continue;
            const int64_t number = in.number(row[r]);
            float score = largest;
            if (largest != -INFINITY) {
                const int64_t block = in.scale_row(in.k, span.first + b * block_size);
                score =
                    scaled_score(in.scale * in.scales.q.at(number), in.scales.k.at(block), largest);
            }
            scores[number * blocks + b] = score;
        }
    }
}

}  // namespace

void index_scores_any(const Call& call, const Layout* layout, const IndexInput& in,
                      View<float, 3> scores) {
    const Problem& p = call.problem;
    const HeadTiling tiling = tile_heads(p.kv_heads, p.queries(), p.index_dim);
    const Tensor<QueryRange, 1> tiles = call.upload(query_tiles(p, tiling.queries));
    const dim3 grid(static_cast<unsigned>(tiles.size()), 1, static_cast<unsigned>(tiling.parts));
    by_score_element(in.index_q.element(), [&]<typename T>() {
        launch_attend(call, index_scores_kernel<T>, grid, tiling.warps(), p.index_dim,
                      score_heads<T>(p, layout, in), tiling, tiles.data(), call.visible,
                      p.block_size, scores.extent(2), scores.data());
    });
    check_launch("index_scores_any");
}

}  // namespace msa::cuda
