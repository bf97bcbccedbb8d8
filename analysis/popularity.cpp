// SPDX-License-Identifier: MIT
#include "analysis/popularity.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/selection.h"

namespace msa::analysis {
namespace {

constexpr int64_t kPaperTileRows = 128;

}  // namespace

Popularity::Popularity(const Problem& layer) : Popularity(layer.kv_heads, block_starts(layer)) {}

Popularity::Popularity(int64_t groups, std::vector<int64_t> first_block)
    : first_block_(std::move(first_block)), counts_({groups, first_block_.back()}) {}

void Popularity::add(const Problem& p, View<const int32_t, 3> ids) {
    const std::vector<int64_t> sequence = query_sequences(p);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const int64_t first = first_block_[static_cast<size_t>(sequence[static_cast<size_t>(i)])];
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int32_t b : selected(ids, i, r)) ++counts_(r, first + b);
    }
}

State Popularity::state() const { return {{}, {counts_.data(), counts_.data() + counts_.size()}}; }

void Popularity::join(const State& state) {
    require_state("popularity", state, 0, static_cast<size_t>(counts_.size()));
    for (int64_t n = 0; n < counts_.size(); ++n)
        counts_.data()[n] += state.counts[static_cast<size_t>(n)];
}

std::vector<double> lorenz_curve(View<const int64_t, 1> counts) {
    std::vector<int64_t> sorted(counts.data(), counts.data() + counts.size());
    std::sort(sorted.begin(), sorted.end());
    const double all =
        static_cast<double>(std::accumulate(sorted.begin(), sorted.end(), int64_t{0}));
    std::vector<double> curve{0};
    int64_t sum = 0;
    for (int64_t count : sorted) {
        sum += count;
        curve.push_back(all > 0 ? static_cast<double>(sum) / all : 0);
    }
    return curve;
}

double gini(View<const int64_t, 1> counts) {
    const std::vector<double> curve = lorenz_curve(counts);
    if (curve.back() == 0) return 0;
    double area = 0;  // trapezoids of width 1/n
    for (size_t b = 1; b < curve.size(); ++b) area += (curve[b - 1] + curve[b]) / 2;
    return 1 - 2 * area / static_cast<double>(curve.size() - 1);
}

int64_t chunks(View<const int64_t, 1> counts, int64_t top_k, int64_t block_size) {
    int64_t pieces = 0;
    for (int64_t b = 0; b < counts.size(); ++b)
        pieces += ceil_div(counts(b), 2 * top_k * block_size);
    return pieces;
}

int64_t queries_per_tile(int64_t group_size) { return ceil_div(kPaperTileRows, group_size); }

int64_t mma_tiles(View<const int64_t, 1> counts, int64_t group_size) {
    int64_t tiles = 0;
    for (int64_t b = 0; b < counts.size(); ++b)
        tiles += ceil_div(counts(b), queries_per_tile(group_size));
    return tiles;
}

double mma_fill(View<const int64_t, 1> counts, int64_t group_size) {
    const int64_t queries =
        std::accumulate(counts.data(), counts.data() + counts.size(), int64_t{0});
    return static_cast<double>(queries) /
           static_cast<double>(mma_tiles(counts, group_size) * queries_per_tile(group_size));
}

}  // namespace msa::analysis
