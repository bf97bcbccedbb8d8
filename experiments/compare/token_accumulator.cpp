// SPDX-License-Identifier: MIT
#include "experiments/compare/token_accumulator.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "experiments/driver/metrics.h"

namespace msa::experiments::compare {
namespace {

/// One query and head: `first` is where its window begins, `lse` that of its dense attention.
struct Head {
    View<const float, 1> q;
    int64_t first;
    double lse, sink;  // sink -inf: none
};

/// Its attention over the tokens at `keys`, `values` (`stride` floats apart) and `tokens`, into
/// out [dh]; returns their share of dense attention.
double attend_tokens(const Problem& p, const Head& head, const float* keys, const float* values,
                     int64_t stride, const std::vector<int64_t>& tokens, View<float, 1> out) {
    const View<const float, 1> q = head.q;
    const int64_t dims = q.size();
    std::fill_n(out.data(), dims, 0.0F);
    double mass = 0;
    for (int64_t j : tokens) {
        if (j < head.first) continue;
        const float* key = keys + j * stride;
        const float* value = values + j * stride;
        float dot = 0;
        for (int64_t d = 0; d < dims; ++d) dot += q(d) * key[d];
        const double probability = std::exp(p.logit(double{dot}) - head.lse);
        mass += probability;
        const auto weight = static_cast<float>(probability);
        for (int64_t d = 0; d < dims; ++d) out(d) += weight * value[d];
    }
    const double all = mass + std::exp(head.sink - head.lse);
    for (int64_t d = 0; mass > 0 && d < dims; ++d) out(d) /= static_cast<float>(all);
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

TokenAccumulator::TokenAccumulator(Config config, int64_t tokens, const Problem& layer,
                                   size_t views)
    : reading_(std::move(config), views, layer.kv_heads),
      tokens_(tokens),
      selector_(find_token_selector(reading_.config().selector)),
      output_error_(layer.kv_heads),
      mass_(static_cast<size_t>(layer.kv_heads)) {}

void TokenAccumulator::prepare(const SelectorLayer& layer) { selector_->prepare(layer); }

void TokenAccumulator::add(const SelectorLayer& layer, const SelectorChunk& chunk,
                           const MeasuredChunk& measured, View<const float, 3> v,
                           View<const float, 1> sinks, SelfChecks& checks) {
    const Problem& p = chunk.problem;
    const std::vector<KeyRange>& visible = visible_keys(p);
    const std::vector<int64_t> budgets(visible.size(), tokens_);
    const std::vector<std::vector<int64_t>> kept = selector_->select(layer, chunk, budgets);
    const View<const float, 3> q = chunk.q.host(), k = layer.k.host();
    Tensor<float, 3> sparse({p.queries(), p.query_heads, p.head_dim});
    Tensor<double, 2> mass({p.queries(), p.kv_heads});
    const int64_t stride = p.kv_heads * p.head_dim;
#pragma omp parallel for schedule(dynamic, 16) num_threads(layer.backend.host_threads())
    for (int64_t i = 0; i < p.queries(); ++i) {
        const auto row = static_cast<size_t>(i);
        for (int64_t h = 0; h < p.query_heads; ++h) {
            const int64_t r = h / p.group_size(), at = visible[row].first * stride + r * p.head_dim;
            const Head head{q[i][h], p.window_start(visible[row].count), double{measured.lse(i, h)},
                            sinks ? double{sinks(h)} : -std::numeric_limits<double>::infinity()};
            mass(i, r) += attend_tokens(p, head, k.data() + at, v.data() + at, stride, kept[row],
                                        sparse.view()[i][h]) /
                          static_cast<double>(p.group_size());
        }
    }
    output_error_.add(measured.kinds, by_group(sparse, p.kv_heads),
                      by_group(measured.dense, p.kv_heads));
    for (int64_t i = 0; i < p.queries(); ++i) {
        const auto row = static_cast<size_t>(i);
        const int64_t blocks = blocks_touched(kept[row], p.block_size);
        for (int64_t r = 0; r < p.kv_heads; ++r)
            checks.check_mass(config().key(), i, r, blocks, mass(i, r));
        const auto products = static_cast<double>(std::ssize(kept[row]) * p.head_dim);
        reading_.add_query({4 * static_cast<double>(p.query_heads) * products,
                            4 * static_cast<double>(p.kv_heads) * products});
        if (measured.kinds[row] != analysis::RowKind::counted) continue;
        reading_.count_row();
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            reading_.add_counted(r, blocks, std::ssize(kept[row]));
            mass_[static_cast<size_t>(r)].add(mass(i, r));
        }
    }
}

void TokenAccumulator::write(io::ResultsWriter& to, const std::string& layer,
                             const Problem& p) const {
    const std::string group = "/metrics/" + config().key() + "/" + layer;
    Metrics metrics(to, group);
    metrics.add("mass_kept", analysis::values(mass_), "group", "probability");
    metrics.add("output_error", output_error_.relative(), "group", "relative",
                output_error_.mean());
    to.attribute(group, "dead_groups", output_error_.dead_heads());
    for (const char* name : {"oracle_mass", "score_recall", "block_recall"})
        to.attribute(group, name, std::nan(""));
    reading_.write(to, group, *selector_, p.block_size);
}

}  // namespace msa::experiments::compare
