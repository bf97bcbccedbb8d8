// SPDX-License-Identifier: MIT
#include "analysis/output_error.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace msa::analysis {

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
