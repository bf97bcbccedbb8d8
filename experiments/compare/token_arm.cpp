// SPDX-License-Identifier: MIT
#include "experiments/compare/token_arm.h"

#include <algorithm>
#include <cmath>

#include "experiments/compare/tally.h"
#include "experiments/driver/metrics.h"

namespace msa::experiments::compare {
namespace {

/// Attention of one query and head over the tokens at `keys`, `values` (`stride` floats apart) and
/// `tokens`, into out [dh]; returns their share of dense attention.
double attend_tokens(View<const float, 1> q, const float* keys, const float* values, int64_t stride,
                     const std::vector<int64_t>& tokens, double scale, double lse,
                     View<float, 1> out) {
    const int64_t dims = q.size();
    std::fill_n(out.data(), dims, 0.0F);
    double mass = 0;
    for (int64_t j : tokens) {
        const float* key = keys + j * stride;
        const float* value = values + j * stride;
        float dot = 0;
        for (int64_t d = 0; d < dims; ++d) dot += q(d) * key[d];
        const double probability = std::exp(scale * double{dot} - lse);
        mass += probability;
        const auto weight = static_cast<float>(probability);
        for (int64_t d = 0; d < dims; ++d) out(d) += weight * value[d];
    }
    for (int64_t d = 0; mass > 0 && d < dims; ++d) out(d) /= static_cast<float>(mass);
    return mass;
}

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

TokenArm::TokenArm(Arm arm, const Problem& layer)
    : arm_(std::move(arm)),
      selector_(find_token_selector(arm_.selector)),
      output_error_(layer.kv_heads),
      mass_(static_cast<size_t>(layer.kv_heads)),
      blocks_(1) {}

void TokenArm::prepare(const SelectorLayer& layer, const analysis::Cost& index_cost) {
    selector_->prepare(layer);
    index_ = index_ + index_cost;
}

void TokenArm::add(const SelectorChunk& chunk, const MeasuredChunk& measured,
                   View<const float, 3> k, View<const float, 3> v, View<const float, 2> lse,
                   SelfChecks& checks) {
    const Problem& p = chunk.problem;
    const std::vector<KeyRange> visible = visible_keys(p);
    const std::vector<int64_t> sequence = query_sequences(p);
    Tensor<float, 3> sparse({p.queries(), p.query_heads, p.head_dim});
    Tensor<double, 2> mass({p.queries(), p.kv_heads});
    std::vector<int64_t> kept(static_cast<size_t>(p.queries())), blocks(kept);
    const int64_t stride = p.kv_heads * p.head_dim;
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t i = 0; i < p.queries(); ++i) {
        const auto row = static_cast<size_t>(i);
        const std::vector<int64_t> tokens =
            selector_->select(chunk, i, sequence[row], visible[row].count, arm_.budget);
        kept[row] = std::ssize(tokens);
        blocks[row] = blocks_touched(tokens, p.block_size);
        for (int64_t h = 0; h < p.query_heads; ++h) {
            const int64_t r = h / p.group_size(), at = visible[row].first * stride + r * p.head_dim;
            mass(i, r) += attend_tokens(chunk.q[i][h], k.data() + at, v.data() + at, stride, tokens,
                                        p.softmax_scale(), double{lse(i, h)}, sparse.view()[i][h]) /
                          static_cast<double>(p.group_size());
        }
    }
    output_error_.add(measured.kinds, by_group(sparse, p.kv_heads),
                      by_group(measured.dense, p.kv_heads));
    for (int64_t i = 0; i < p.queries(); ++i) {
        const auto row = static_cast<size_t>(i);
        for (int64_t r = 0; r < p.kv_heads; ++r)
            checks.check_mass(arm_.key(), i, r, blocks[row], mass(i, r));
        const double pairs = static_cast<double>(kept[row] * p.head_dim);
        attention_ = attention_ + analysis::Cost{4 * static_cast<double>(p.query_heads) * pairs,
                                                 4 * static_cast<double>(p.kv_heads) * pairs};
        if (measured.kinds[row] != analysis::RowKind::counted) continue;
        ++counted_;
        blocks_[0].add(static_cast<double>(blocks[row]));
        for (int64_t r = 0; r < p.kv_heads; ++r) mass_[static_cast<size_t>(r)].add(mass(i, r));
    }
    queries_ += p.queries();
}

void TokenArm::write(io::ResultsWriter& to, const std::string& layer, const Problem& p) const {
    const std::string group = "/metrics/" + arm_.key() + "/" + layer;
    Metrics metrics(to, group);
    metrics.add("mass_kept", analysis::values(mass_), "group", "probability");
    metrics.add("output_error", output_error_.relative(), "group", "relative");
    metrics.add("blocks_kept", analysis::values(blocks_), "layer", "blocks");
    for (const char* name : {"oracle_mass", "score_recall", "block_recall"})
        to.attribute(group, name, std::nan(""));
    write_arm(to, group, arm_, std::string(selector_->rule()), p.block_size, {arm_.budget, 0, 0},
              counted_);
    write_costs(to, group, index_, attention_, queries_);
}

}  // namespace msa::experiments::compare
