// SPDX-License-Identifier: MIT
#include "experiments/compare/token_accumulator.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/select/cost.h"
#include "experiments/driver/metrics.h"

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

TokenAccumulator::TokenAccumulator(Config config, int64_t tokens, const Problem& layer,
                                   const analysis::QueryBlocks& blocks, size_t views)
    : reading_(std::move(config), views, layer.kv_heads),
      tokens_(tokens),
      selector_(find_token_selector(reading_.config().selector)),
      output_error_(layer.kv_heads),
      mass_(static_cast<size_t>(layer.kv_heads)),
      blocks_(blocks),
      sums_(blocks.count(), layer.kv_heads) {}

void TokenAccumulator::add(const MeasuredChunk& measured, const KeptTokens& kept,
                           const TokenAttention& attention, SelfChecks& checks) {
    const Problem& p = measured.problem;
    const Tensor<double, 2>& mass = attention.mass;
    const Tensor<double, 2> differences =
        analysis::squared_differences(attention.out, measured.dense, p.kv_heads);
    output_error_.add(measured.kinds, differences, measured.norm);
    sums_.add(measured.blocks, mass, differences, measured.norm);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const auto row = static_cast<size_t>(i);
        const int64_t blocks = blocks_touched(kept[row], p.block_size);
        for (int64_t r = 0; r < p.kv_heads; ++r)
            checks.check_mass(config().key(), i, r, blocks, mass(i, r));
        const auto products = static_cast<double>(std::ssize(kept[row]) * p.head_dim);
        reading_.add_query({4 * static_cast<double>(p.query_heads) * products,
                            2 * kCostElementBytes * static_cast<double>(p.kv_heads) * products});
        if (measured.kinds[row] != analysis::RowKind::counted) continue;
        reading_.count_row();
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            reading_.add_counted(r, blocks, std::ssize(kept[row]));
            mass_[static_cast<size_t>(r)].add(mass(i, r));
        }
    }
}

void TokenAccumulator::write(io::UnitWriter& to, const std::string& layer, const Problem& p) const {
    const std::string group = "/metrics/" + config().key() + "/" + layer;
    Metrics metrics(to, group);
    metrics.add("mass_kept", analysis::values(mass_));
    metrics.add_with_mean("group_output_error", output_error_.relative(), output_error_.mean(),
                          "output_error");
    to.attribute(group, "dead_groups", output_error_.dead_heads());
    for (const char* name : {"oracle_mass", "score_recall", "block_recall"})
        to.attribute(group, name, std::nan(""));
    reading_.write(to, group, *selector_, p.block_size);
    write_blocks(to, "/" + config().key() + "/" + layer, sums_, blocks_.rows, reading_.views());
}

}  // namespace msa::experiments::compare
