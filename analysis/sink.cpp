// SPDX-License-Identifier: MIT
#include "analysis/sink.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "core/selection.h"
#include "core/tolerance.h"

namespace msa::analysis {

namespace {

// sink_bound of it is 1 %.
constexpr double kLargestLse = 0.01 / (2 * kRoundoff);

}  // namespace

SinkMass::SinkMass(int64_t query_heads, int64_t tokens)
    : tokens_(tokens), means_(static_cast<size_t>(2 * query_heads)) {
    require(tokens >= 1, "sink tokens are ", tokens, ", must be at least 1");
}

Tensor<double, 3> SinkMass::logits(const Problem& p, View<const float, 3> q,
                                   View<const float, 3> k) const {
    const std::vector<KeyRange>& visible = visible_keys(p);
    Tensor<double, 3> logits({p.queries(), p.query_heads, tokens_});
#pragma omp parallel for
    for (int64_t i = 0; i < p.queries(); ++i) {
        const KeyRange seen = visible[static_cast<size_t>(i)];
        for (int64_t h = 0; h < p.query_heads; ++h)
            for (int64_t j = p.window_start(seen.count); j < std::min(tokens_, seen.count); ++j) {
                double dot = 0;
                for (int64_t d = 0; d < p.head_dim; ++d)
                    dot += double{q(i, h, d)} * double{k(seen.first + j, h / p.group_size(), d)};
                logits(i, h, j) = p.logit(dot);
            }
    }
    return logits;
}

void SinkMass::add(const Problem& p, View<const double, 3> logits, View<const float, 2> lse,
                   View<const int32_t, 3> ids) {
    const std::vector<KeyRange>& visible = visible_keys(p);
    add_rows(means_, p.queries(), [&](int64_t i, RowValues values) {
        const KeyRange seen = visible[static_cast<size_t>(i)];
        if (seen.count == 0) return;
        for (int64_t h = 0; h < p.query_heads; ++h) {
            const int64_t group = h / p.group_size();
            double first = 0, sum = 0;
            for (int64_t j = p.window_start(seen.count); j < std::min(tokens_, seen.count); ++j) {
                if (ids) {
                    const auto kept = selected(ids, i, group);
                    if (!std::binary_search(kept.begin(), kept.end(), j / p.block_size)) continue;
                }
                const double probability = std::abs(double{lse(i, h)}) > kLargestLse
                                               ? std::numeric_limits<double>::quiet_NaN()
                                               : std::exp(logits(i, h, j) - double{lse(i, h)});
                if (j == 0) first = probability;
                sum += probability;
            }
            values[static_cast<size_t>(h)] = first;
            values[static_cast<size_t>(p.query_heads + h)] = sum;
        }
    });
}

std::vector<double> SinkMass::first_token() const {
    return values(std::span(means_).first(means_.size() / 2));
}

std::vector<double> SinkMass::first_tokens() const {
    return values(std::span(means_).last(means_.size() / 2));
}

std::vector<double> learned_sink_mass(View<const float, 1> sinks, View<const float, 2> lse) {
    std::vector<Mean> means(static_cast<size_t>(sinks.extent(0)));
    add_rows(means, lse.extent(0), [&](int64_t i, RowValues values) {
        for (int64_t h = 0; h < sinks.extent(0); ++h)
            values[static_cast<size_t>(h)] = std::exp(double{sinks(h)} - double{lse(i, h)});
    });
    return values(means);
}

}  // namespace msa::analysis
