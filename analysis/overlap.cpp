// SPDX-License-Identifier: MIT
#include "analysis/overlap.h"

#include <algorithm>

namespace msa::analysis {

double overlap(std::span<const int32_t> a, std::span<const int32_t> b) {
    size_t in_a = 0, in_b = 0, both = 0;
    while (in_a < a.size() && in_b < b.size()) {
        const int32_t left = a[in_a], right = b[in_b];
        both += left == right ? 1U : 0U;
        in_a += left <= right ? 1U : 0U;
        in_b += right <= left ? 1U : 0U;
    }
    const size_t either = a.size() + b.size() - both;
    return either == 0 ? 1 : static_cast<double>(both) / static_cast<double>(either);
}

GroupOverlap::GroupOverlap(int64_t groups)
    : groups_(groups), means_(static_cast<size_t>(groups * groups)) {}

void GroupOverlap::add(std::span<const RowKind> kinds, View<const int32_t, 3> ids) {
    add_rows(means_, ids.extent(0), [&](int64_t i, RowValues values) {
        if (kinds[static_cast<size_t>(i)] != RowKind::counted) return;
        for (int64_t r = 0; r < groups_; ++r)
            for (int64_t s = r; s < groups_; ++s)
                values[static_cast<size_t>(r * groups_ + s)] =
                    overlap(selected(ids, i, r), selected(ids, i, s));
    });
}

Tensor<double, 2> GroupOverlap::matrix() const {
    Tensor<double, 2> all({groups_, groups_});
    for (int64_t r = 0; r < groups_; ++r)
        for (int64_t s = r; s < groups_; ++s)
            all(r, s) = all(s, r) = means_[static_cast<size_t>(r * groups_ + s)].value();
    return all;
}

double mean_overlap(View<const int32_t, 3> a, View<const int32_t, 3> b) {
    Mean mean;
    add_rows({&mean, 1}, a.extent(0) * a.extent(1), [&](int64_t row, RowValues values) {
        const int64_t i = row / a.extent(1), r = row % a.extent(1);
        values[0] = overlap(selected(a, i, r), selected(b, i, r));
    });
    return mean.value();
}

void Distances::add(const Problem& p, std::span<const RowKind> kinds, View<const int32_t, 3> ids) {
    const std::vector<KeyRange> visible = visible_keys(p);
    for (int64_t i = 0; i < ids.extent(0); ++i) {
        const auto row = static_cast<size_t>(i);
        if (kinds[row] != RowKind::counted) continue;
        const int64_t local = (visible[row].count - 1) / p.block_size;
        for (int64_t r = 0; r < ids.extent(1); ++r)
            for (int32_t b : selected(ids, i, r)) ++counts_[static_cast<size_t>(local - b)];
    }
}

void Distances::join(const State& state) {
    require_state("distances", state, 0, counts_.size());
    for (size_t n = 0; n < counts_.size(); ++n) counts_[n] += state.counts[n];
}

SelectionPattern::SelectionPattern(int64_t groups)
    : groups_(static_cast<size_t>(groups)), means_(2 * groups_ + groups_ * (groups_ - 1) / 2) {}

void SelectionPattern::add(const Problem& p, std::span<const RowKind> kinds,
                           View<const int32_t, 3> ids) {
    const std::vector<KeyRange> visible = visible_keys(p);
    add_rows(means_, ids.extent(0), [&](int64_t i, RowValues values) {
        if (kinds[static_cast<size_t>(i)] != RowKind::counted) return;
        const auto own =
            static_cast<int32_t>((visible[static_cast<size_t>(i)].count - 1) / p.block_size);
        const auto kept = [&](size_t group) {
            return selected(ids, i, static_cast<int64_t>(group));
        };
        const auto far = [&](size_t group) {  // ids are ascending
            const std::span<const int32_t> all = kept(group);
            const auto begin = std::upper_bound(all.begin(), all.end(), 0);
            return std::span(begin, std::lower_bound(begin, all.end(), own - 1));
        };
        size_t pair = 2 * groups_;
        for (size_t r = 0; r < groups_; ++r) {
            const std::span<const int32_t> all = kept(r);
            values[r] = std::binary_search(all.begin(), all.end(), 0) ? 1 : 0;
            values[groups_ + r] = std::binary_search(all.begin(), all.end(), own - 1) ? 1 : 0;
            for (size_t s = r + 1; s < groups_; ++s, ++pair)
                if (!far(r).empty() || !far(s).empty()) values[pair] = overlap(far(r), far(s));
        }
    });
}

std::vector<double> SelectionPattern::first_block_rate() const { return of(0, groups_); }

std::vector<double> SelectionPattern::local_rate() const { return of(groups_, groups_); }

std::vector<double> SelectionPattern::far_overlap() const {
    return of(2 * groups_, means_.size() - 2 * groups_);
}

}  // namespace msa::analysis
