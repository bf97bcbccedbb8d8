// SPDX-License-Identifier: MIT
#include "analysis/output_error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace msa::analysis {

double squared_difference(const float* a, const float* b, int64_t count) {
    constexpr int64_t kSums = 8;
    std::array<double, kSums> sums{};
    const int64_t whole = count / kSums * kSums;
    for (int64_t d = 0; d < whole; d += kSums)
        for (int64_t n = 0; n < kSums; ++n) {
            const double off = double{a[d + n]} - (b == nullptr ? 0.0 : double{b[d + n]});
            sums[static_cast<size_t>(n)] += off * off;
        }
    for (int64_t d = whole; d < count; ++d) {
        const double off = double{a[d]} - (b == nullptr ? 0.0 : double{b[d]});
        sums[static_cast<size_t>(d - whole)] += off * off;
    }
    return std::accumulate(sums.begin(), sums.end(), 0.0);
}

Tensor<double, 2> squared_differences(View<const float, 3> a, View<const float, 3> b,
                                      int64_t groups) {
    const int64_t width = a.extent(1) / groups * a.extent(2);
    Tensor<double, 2> sums({a.extent(0), groups});
#pragma omp parallel for
    for (int64_t row = 0; row < sums.size(); ++row)
        sums.data()[row] =
            squared_difference(a.data() + row * width, b ? b.data() + row * width : nullptr, width);
    return sums;
}

OutputError::OutputError(int64_t query_heads)
    : difference_(static_cast<size_t>(query_heads), 0.0), norm_(difference_) {}

void OutputError::add(std::span<const RowKind> kinds, View<const float, 3> sparse,
                      View<const float, 3> dense) {
    counted_ += std::count(kinds.begin(), kinds.end(), RowKind::counted);
#pragma omp parallel for
    for (int64_t h = 0; h < dense.extent(1); ++h) {
        const auto head = static_cast<size_t>(h);
        double difference = difference_[head], norm = norm_[head];
        for (int64_t i = 0; i < dense.extent(0); ++i) {
            if (kinds[static_cast<size_t>(i)] != RowKind::counted) continue;
            for (int64_t d = 0; d < dense.extent(2); ++d) {
                const double want = dense(i, h, d), off = double{sparse(i, h, d)} - want;
                difference += off * off;
                norm += want * want;
            }
        }
        difference_[head] = difference;
        norm_[head] = norm;
    }
}

void OutputError::add(std::span<const RowKind> kinds, View<const double, 2> differences,
                      View<const double, 2> norms) {
    for (int64_t i = 0; i < norms.extent(0); ++i) {
        if (kinds[static_cast<size_t>(i)] != RowKind::counted) continue;
        ++counted_;
        for (int64_t h = 0; h < norms.extent(1); ++h) {
            difference_[static_cast<size_t>(h)] += differences(i, h);
            norm_[static_cast<size_t>(h)] += norms(i, h);
        }
    }
}

State OutputError::state() const {
    State state{difference_, {counted_}};
    state.sums.insert(state.sums.end(), norm_.begin(), norm_.end());
    return state;
}

void OutputError::join(const State& state) {
    require_state("output errors", state, 2 * norm_.size(), 1);
    for (size_t h = 0; h < norm_.size(); ++h) {
        difference_[h] += state.sums[h];
        norm_[h] += state.sums[norm_.size() + h];
    }
    counted_ += state.counts[0];
}

std::vector<double> OutputError::relative() const {
    std::vector<double> errors;
    for (size_t h = 0; h < norm_.size(); ++h)
        errors.push_back(norm_[h] > 0 ? std::sqrt(difference_[h] / norm_[h])
                                      : std::numeric_limits<double>::quiet_NaN());
    return errors;
}

int64_t OutputError::dead_heads() const {
    return counted_ == 0 ? 0 : std::count(norm_.begin(), norm_.end(), 0.0);
}

double OutputError::mean() const {
    const std::vector<double> errors = relative();
    std::vector<double> living;
    for (size_t h = 0; h < errors.size(); ++h)
        if (norm_[h] != 0) living.push_back(errors[h]);
    return average(living);
}

}  // namespace msa::analysis
