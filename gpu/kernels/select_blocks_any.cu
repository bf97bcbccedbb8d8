// SPDX-License-Identifier: MIT
// eq:msa-topk, one warp per row: the score of the last block that gets a slot is found bit by bit,
// then one walk over the row in ascending order writes the ids.
#include "core/selection.h"
#include "gpu/device/ordered.cuh"
#include "gpu/device/warp.cuh"
#include "gpu/kernels/kernels.h"

namespace msa::cuda {
namespace {

constexpr int kWarps = 8;

/// Calls body(block, key) for all blocks of a row, 32 at a time; forced blocks are no candidates.
/// Lanes behind the last block get kNoCandidate.
template <typename Body>
__device__ void for_each_block(const SelectionRule& rule, const float* scores, int64_t blocks,
                               Body body) {
    for (int64_t first = 0; first < blocks; first += kWarp) {
        const int64_t b = first + lane_id();
        const bool candidate = b < blocks && !is_forced(rule, b, blocks);
        body(b, candidate ? ordered_key(scores[b]) : kNoCandidate);
    }
}

__global__ void select_blocks_kernel(SelectionRule rule, const KeyRange* visible, int64_t rows,
                                     int64_t kv_heads, int64_t all_blocks, int64_t block_size,
                                     const float* scores, int32_t* ids) {
    const int64_t row = int64_t{blockIdx.x} * kWarps + warp_id();
    if (row >= rows) return;
    scores += row * all_blocks;
    ids += row * rule.top_k;
    const int64_t blocks = visible_blocks(visible[row / kv_heads].count, block_size);
    const int64_t oldest_local = max(int64_t{0}, blocks - rule.forced_local);
    const int64_t forced = min(rule.forced_first, oldest_local) + blocks - oldest_local;
    const int64_t free = rule.top_k - forced;

    // The largest key that at least `free` candidates reach; kNoCandidate if there are too few.
    uint32_t last = kNoCandidate;
    for (uint32_t bit = 0x80000000U; bit != 0 && free > 0; bit >>= 1) {
        int64_t reach = 0;
        for_each_block(rule, scores, blocks,
                       [&](int64_t, uint32_t key) { reach += key >= (last | bit); });
        if (warp_sum(reach) >= free) last |= bit;
    }
    int64_t above = 0;
    for_each_block(rule, scores, blocks, [&](int64_t, uint32_t key) { above += key > last; });
    int64_t ties = last == kNoCandidate ? 0 : free - warp_sum(above);  // to the lower ids

    int64_t kept = 0;
    const unsigned before = (1U << lane_id()) - 1;
    for_each_block(rule, scores, blocks, [&](int64_t b, uint32_t key) {
        const unsigned tied = __ballot_sync(kAllLanes, key == last && last != kNoCandidate);
        const bool chosen =
            free > 0 &&
            (key > last || ((tied >> lane_id() & 1) != 0 && __popc(tied & before) < ties));
        const bool keep = b < blocks && (chosen || is_forced(rule, b, blocks));
        const unsigned keepers = __ballot_sync(kAllLanes, keep);
        if (keep) ids[kept + __popc(keepers & before)] = static_cast<int32_t>(b);
        kept += __popc(keepers);
        ties -= min(ties, int64_t{__popc(tied)});
    });
    for (int64_t slot = kept + lane_id(); slot < rule.top_k; slot += kWarp) ids[slot] = kNoBlock;
}

}  // namespace

void select_blocks_any(const Call& call, const SelectionRule& rule, View<const float, 3> scores,
                       View<int32_t, 3> ids) {
    const int64_t rows = ids.extent(0) * ids.extent(1);
    if (rows == 0) return;
    const auto grid = static_cast<unsigned>(ceil_div(rows, kWarps));
    select_blocks_kernel<<<grid, kWarps * kWarp, 0, call.stream()>>>(
        rule, call.visible, rows, ids.extent(1), scores.extent(2), call.problem.block_size,
        scores.data(), ids.data());
    check_launch("select_blocks_any");
}

}  // namespace msa::cuda
