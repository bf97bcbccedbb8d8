// SPDX-License-Identifier: MIT
// P_b of the recall definitions (sec:experiment-training-dynamics), mean over the group's heads
#include <cmath>
#include <limits>

#include "core/reference/reference_backend.h"

namespace msa::reference {

void block_mass(const Problem& p, const MainBranch& in, const BlockMassOutput& to) {
    const std::vector<KeyRange> visible = visible_keys(p);
    const auto blocks = static_cast<size_t>(p.blocks());
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            std::vector<double> mass(blocks, 0.0);
            std::vector<double> top(blocks, -std::numeric_limits<double>::infinity());
            const KeyRange seen = visible[static_cast<size_t>(i)];
            const std::vector<int64_t> tokens = in_window(p, seen, all_tokens(seen));
            for (int64_t h = r * p.group_size(); h < (r + 1) * p.group_size(); ++h) {
                std::vector<double> logits;
                for (int64_t j : tokens) logits.push_back(p.logit(dot(in.q[i][h], in.k.row(j, r))));
                std::vector<double> probability = logits;
                softmax(probability, sink_of(in, h));
                for (size_t t = 0; t < logits.size(); ++t) {
                    const auto b = static_cast<size_t>((tokens[t] - seen.first) / p.block_size);
                    mass[b] += probability[t] / static_cast<double>(p.group_size());
                    if (logits[t] > top[b] || std::isnan(logits[t])) top[b] = logits[t];
                }
            }
            for (size_t b = 0; b < blocks; ++b) {
                to.mass(i, r, b) = static_cast<float>(mass[b]);
                if (to.max_logit) to.max_logit(i, r, b) = static_cast<float>(top[b]);
            }
        }
}

}  // namespace msa::reference
