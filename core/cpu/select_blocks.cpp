// SPDX-License-Identifier: MIT
#include <omp.h>

#include "core/cpu/cpu_backend.h"
#include "core/top_blocks.h"

namespace msa::cpu {

void select_blocks(const Problem& p, const SelectionRule& rule, View<const float, 3> scores,
                   View<int32_t, 3> ids, int threads) {
    const std::vector<KeyRange> visible = visible_keys(p);
    std::vector<TopBlocks> tops;
    for (int t = 0; t < threads; ++t) tops.emplace_back(rule);
#pragma omp parallel for schedule(dynamic, 64) num_threads(threads)
    for (int64_t i = 0; i < p.queries(); ++i) {
        TopBlocks& top = tops[static_cast<size_t>(omp_get_thread_num())];
        const int64_t blocks = visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size);
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            top.start(blocks);
            for (int64_t b = 0; b < blocks; ++b) top.offer(b, scores(i, r, b));
            top.finish(ids[i][r]);
        }
    }
}

}  // namespace msa::cpu
