// SPDX-License-Identifier: MIT
#include "gpu/kernels/select_blocks_warp.h"
#include "gpu/plan/limits.h"
#include "gpu/plan/tuned.h"

namespace msa::cuda {

Support takes_select_blocks_tuned(const SelectBlocksRequest& request) {
    if (request.top_k > kMostSelected) return above("k", request.top_k, kMostSelected);
    return {};
}

void select_blocks_tuned(const Call& call, const SelectionRule& rule, View<const float, 3> scores,
                         View<int32_t, 3> ids) {
    if (ids.size() == 0) return;
    const Problem& p = call.problem;
    check(launch_select_blocks_warp({.scores = scores.data(),
                                     .pitch = p.blocks(),
                                     .visible = call.visible,
                                     .seen = nullptr,
                                     .rows = p.queries() * p.kv_heads,
                                     .groups = narrow(p.kv_heads),
                                     .block_size = narrow(p.block_size),
                                     .rule = DeviceRule(rule),
                                     .ids = ids.data()},
                                    false, call.stream()),
          "select_blocks_warp");
}

}  // namespace msa::cuda
