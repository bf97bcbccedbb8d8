// SPDX-License-Identifier: MIT
// The keys that one query of one group attends to, as spans: the visible tokens of each selected
// block, or all visible tokens as one span. Also attention to them, with a thread block per query
// and group.
#pragma once

#include "core/selection.h"
#include "gpu/device/attend.cuh"

namespace msa::cuda {

struct KeySupport {
    const int32_t* ids;  // [Nq, Hkv, k]; null: all visible tokens
    int64_t top_k;
    int64_t kv_heads;
    int64_t block_size;
    const KeyRange* visible;  // [Nq]

    __device__ int64_t spans() const { return ids == nullptr ? 1 : top_k; }
    /// A span of packed tokens; empty if the slot is padding.
    __device__ KeyRange span(int64_t query, int64_t group, int64_t slot) const {
        const KeyRange seen = visible[query];
        if (ids == nullptr) return seen;
        const int64_t block = ids[(query * kv_heads + group) * top_k + slot];
        if (block == kNoBlock) return {seen.first, 0};
        const int64_t first = block * block_size;
        return {seen.first + first, max(int64_t{0}, min(block_size, seen.count - first))};
    }
};

inline KeySupport key_support(const Call& call, View<const int32_t, 3> ids) {
    return {ids.data(), ids.extent(2), call.problem.kv_heads, call.problem.block_size,
            call.visible};
}

/// Attention of part `part` of the heads of one query and group; called by a whole thread block.
template <typename T>
__device__ void attend_to_support(const Heads<T>& in, const HeadTiling& tiling,
                                  const KeySupport& support, int64_t query, int64_t group,
                                  int64_t part, const Output& out, float* lse, float* shared) {
    const auto row_of = [&](int r) {
        return tiling.row(r, {query, query + 1}, group, part, in.heads, support.visible, in.window);
    };
    Attended state;
    attend(
        in, group, row_of, support.spans(),
        [&](int64_t slot) { return support.span(query, group, slot); }, shared, state);
    finish_rows(
        state, row_of, in.width, [&](const TileRow& row, int) { return in.number(row); }, out, lse);
}

template <typename T>
__global__ void __launch_bounds__(kTileThreads, kTileBlocks)
    attend_to_support_kernel(Heads<T> in, HeadTiling tiling, KeySupport support, Output out,
                             float* lse) {
    extern __shared__ float4 shared[];
    attend_to_support(in, tiling, support, blockIdx.x, blockIdx.y, blockIdx.z, out, lse,
                      &shared[0].x);
}

/// Writes lse [Nq, heads] and, unless it is absent, out [Nq, heads, width].
template <typename T>
void attend_to_support(const Call& call, const Heads<T>& heads, const KeySupport& support,
                       const Output& out, float* lse) {
    const HeadTiling tiling = tile_heads(heads.heads, 1, heads.width);
    const dim3 grid(static_cast<unsigned>(call.problem.queries()),
                    static_cast<unsigned>(call.problem.kv_heads),
                    static_cast<unsigned>(tiling.parts));
    launch_attend(call, attend_to_support_kernel<T>, grid, tiling.warps(), heads.width, heads,
                  tiling, support, out, lse);
    check_launch("attend_to_support");
}

}  // namespace msa::cuda
