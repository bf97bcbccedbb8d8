// SPDX-License-Identifier: MIT
#include "experiments/compare/token_accumulator.h"

#include "core/select/cost.h"

namespace msa::experiments::compare {
namespace {

/// Blocks that ascending tokens touch.
int64_t blocks_touched(const std::vector<int64_t>& tokens, int64_t block_size) {
    int64_t blocks = 0, last = -1;
    for (int64_t j : tokens)
        if (j / block_size != last) {
            last = j / block_size;
            ++blocks;
        }
    return blocks;
}

}  // namespace

TokenAccumulator::TokenAccumulator(Config config, int64_t tokens, TokenConfigSums& sums)
    : about_{std::move(config)},
      tokens_(tokens),
      selector_(find_token_selector(about_.config.selector)),
      sums_(sums) {}

void TokenAccumulator::add(const MeasuredChunk& measured, const KeptTokens& kept,
                           const TokenAttention& attention, SelfChecks& checks) {
    const Problem& p = measured.problem;
    const Tensor<double, 2>& mass = attention.mass;
    const Tensor<double, 2> differences =
        analysis::squared_differences(attention.out, measured.dense, p.kv_heads);
    sums_.output_error.add(measured.kinds, differences, measured.norm);
    sums_.query_blocks.add(measured.blocks, mass, differences, measured.norm);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const auto row = static_cast<size_t>(i);
        const int64_t blocks = blocks_touched(kept[row], p.block_size);
        for (int64_t r = 0; r < p.kv_heads; ++r)
            checks.check_mass(config().key(), i, r, blocks, mass(i, r));
        const auto products = static_cast<double>(std::ssize(kept[row]) * p.head_dim);
        sums_.reading.add_query(
            {4 * static_cast<double>(p.query_heads) * products,
             2 * kCostElementBytes * static_cast<double>(p.kv_heads) * products});
        if (measured.kinds[row] != analysis::RowKind::counted) continue;
        sums_.reading.count_row();
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            sums_.reading.add_counted(r, blocks, std::ssize(kept[row]));
            sums_.mass.means[static_cast<size_t>(r)].add(mass(i, r));
        }
    }
}

}  // namespace msa::experiments::compare
