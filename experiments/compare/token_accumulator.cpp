// SPDX-License-Identifier: MIT
#include "experiments/compare/token_accumulator.h"

#include "analysis/output_error.h"
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

TokenAccumulator::TokenAccumulator(Config config, int64_t tokens, LayerSums& sums)
    : about_{std::move(config)},
      tokens_(tokens),
      selector_(find_token_selector(about_.config.selector)),
      sums_(sums) {
    sums_.keep_tokens(about_.config.key());
}

void TokenAccumulator::add(const MeasuredChunk& chunk, const KeptTokens& kept,
                           const TokenAttention& attention) {
    const std::string key = config().key();
    const Tensor<double, 2>& mass = attention.mass;
    const Tensor<double, 2> differences = analysis::squared_differences(
        attention.out, host_view(chunk.dense.out), chunk.problem.kv_heads);
    for (int64_t i = 0; i < mass.extent(0); ++i)
        for (int64_t r = 0; r < mass.extent(1); ++r)
            sums_.checks.check_mass(
                key, i, r, blocks_touched(kept[static_cast<size_t>(i)], chunk.problem.block_size),
                mass(i, r));
    sums_.sums.add(chunk.blocks, [&](const measure::BlockRows& of) {
        const Problem& p = of.problem;
        const std::span<const analysis::RowKind> kinds = of.of(chunk.kinds);
        TokenConfigSums sums(p.kv_heads);
        sums.output_error.add(kinds, of.of(differences), of.of(chunk.norm));
        for (int64_t i = 0; i < p.queries(); ++i) {
            const std::vector<int64_t>& tokens = kept[static_cast<size_t>(of.rows.begin + i)];
            const auto products = static_cast<double>(std::ssize(tokens) * p.head_dim);
            sums.reading.add_query(
                {4 * static_cast<double>(p.query_heads) * products,
                 2 * kCostElementBytes * static_cast<double>(p.kv_heads) * products});
            if (kinds[static_cast<size_t>(i)] != analysis::RowKind::counted) continue;
            sums.reading.count_row();
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                sums.reading.add_counted(r, blocks_touched(tokens, p.block_size),
                                         std::ssize(tokens));
                sums.mass.means[static_cast<size_t>(r)].add(mass(of.rows.begin + i, r));
            }
        }
        return states_of(sums, key);
    });
}

}  // namespace msa::experiments::compare
