// SPDX-License-Identifier: MIT
// Merges the lists of the parts of index_select where a tile has few parts, or few tiles have more
// than one: a warp takes a row. Else merge_splits is faster, since it leaves most lists unread.
#pragma once

#include "gpu/device/early.cuh"
#include "gpu/device/row_rule.cuh"
#include "gpu/device/row_scores.cuh"
#include "gpu/device/seen_keys.cuh"

namespace msa::cuda {
namespace {  // a copy for each kernel, since kernels are compiled for different devices

constexpr int kFewParts = 4;     // most of a tile
constexpr int kManyRows = 4096;  // from here on, few are of tiles that the device cut
constexpr int kMergeRows = 8;    // of a thread block

template <int Kept>
__global__ void __launch_bounds__(kMergeRows* kWarp)
    merge_few(const __grid_constant__ IndexSelectArgs args) {
    launch_dependents();
    const int64_t row = int64_t{blockIdx.x} * kMergeRows + threadIdx.x / kWarp;
    if (row >= args.queries * args.groups) return;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (args.now.tiles != nullptr) wait_for_previous_kernel();
    const ListsOfQuery query(args, row / args.groups);
    const RowRule own(args.rule, query.seen, args.block_size);
    const PartLists<Kept> from(args, query.lists, static_cast<int>(row % args.groups));
    wait_for_previous_kernel();
    if (from.parts == 1) return;  // its ids are there
    // Lists have their best first. A warp reads two of 16 at once, the second in reverse.
    constexpr int kAtOnce = kWarp / Kept;
    const int place = lane < Kept ? lane : kWarp - 1 - lane;
    const auto keys_from = [&](int part) {
        const int mine = part + lane / Kept;
        const uint64_t key = mine < from.parts ? __ldcg(from.list(mine) + place) : 0;
        return kAtOnce == 1 ? key : sort_descending<true>(key);
    };
    WarpTopK list{keys_from(0)};
    for (int part = kAtOnce; part < from.parts; part += kAtOnce) {
        const uint64_t reversed = __shfl_sync(kAllLanes, keys_from(part), kWarp - 1 - lane);
        list.key = sort_descending<true>(list.key > reversed ? list.key : reversed);
    }
    write_ids(list, args.rule.top_k, own.visible, args.rule.forced_first, args.rule.forced_local,
              args.ids + row * args.rule.top_k);
}

/// Whether merge_few is to merge a call's lists.
inline bool has_few_parts(const IndexSelectArgs& args) {
    return args.now.tiles == nullptr ? args.most_parts <= kFewParts
                                     : args.queries * args.groups >= kManyRows;
}
inline unsigned merge_few_blocks(const IndexSelectArgs& args) {
    return static_cast<unsigned>(ceil_div(args.queries * args.groups, int64_t{kMergeRows}));
}

}  // namespace
}  // namespace msa::cuda
