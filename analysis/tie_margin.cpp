// SPDX-License-Identifier: MIT
#include "analysis/tie_margin.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "core/tolerance.h"

namespace msa::analysis {
namespace {

double norm(View<const float, 1> row) {
    double sum = 0;
    for (int64_t d = 0; d < row.size(); ++d) sum += double{row(d)} * double{row(d)};
    return std::sqrt(sum);
}

}  // namespace

TieMargin::TieMargin(int64_t groups)
    : groups_(static_cast<size_t>(groups)), means_(3 * static_cast<size_t>(groups)) {}

void TieMargin::add(const Problem& p, const SelectionRule& rule, std::span<const RowKind> kinds,
                    View<const float, 3> scores, View<const double, 2> rounding) {
    const std::vector<KeyRange>& visible = visible_keys(p);
    add_rows(means_, scores.extent(0), [&](int64_t i, RowValues values) {
        const auto row = static_cast<size_t>(i);
        if (kinds[row] != RowKind::counted) return;
        const int64_t blocks = visible_blocks(visible[row].count, p.block_size);
        for (size_t r = 0; r < groups_; ++r) {
            std::vector<float> free;
            int64_t forced = 0;
            for (int64_t b = 0; b < blocks; ++b) {
                const float score = scores(i, r, b);
                if (is_forced(rule, b, blocks))
                    ++forced;
                else if (score > -std::numeric_limits<float>::infinity())
                    free.push_back(score);
            }
            const int64_t slots = rule.top_k - forced;
            if (slots < 1 || std::ssize(free) <= slots) continue;
            const auto next = free.begin() + slots;
            std::nth_element(free.begin(), next, free.end(), std::greater<>());
            const float kept = *std::min_element(free.begin(), next);
            // Not a difference where both are infinite.
            const double margin = kept == *next ? 0 : double{kept} - double{*next};
            const double off = rounding ? 2 * rounding(i, r) : 0;
            const auto [low, high] = std::minmax_element(free.begin(), free.end());
            values[r] = margin == 0 ? 1 : 0;
            values[groups_ + r] = margin <= off ? 1 : 0;
            values[2 * groups_ + r] = *low == *high ? 1 : 0;
        }
    });
}

Tensor<double, 2> index_score_rounding(const Problem& p, View<const float, 3> index_q,
                                       View<const float, 2> index_k) {
    // [Nk] the largest norm from the first key of the sequence up to this one.
    std::vector<double> largest(static_cast<size_t>(index_k.extent(0)));
    const std::vector<int64_t>& starts = p.batch.cu_seqlens_k();
    for (size_t s = 0; s + 1 < starts.size(); ++s)
        for (int64_t j = starts[s]; j < starts[s + 1]; ++j) {
            const double before = j == starts[s] ? 0 : largest[static_cast<size_t>(j - 1)];
            largest[static_cast<size_t>(j)] = std::max(before, norm(index_k[j]));
        }
    Tensor<double, 2> all({p.queries(), p.kv_heads});
    for (int64_t i = 0; i < p.queries(); ++i) {
        const KeyRange seen = visible_keys(p)[static_cast<size_t>(i)];
        if (seen.count == 0) continue;
        for (int64_t r = 0; r < p.kv_heads; ++r)
            all(i, r) =
                logit_bound(p.index_scale(), norm(index_q[i][r]),
                            largest[static_cast<size_t>(seen.first + seen.count - 1)], p.index_dim);
    }
    return all;
}

}  // namespace msa::analysis
