// SPDX-License-Identifier: MIT
// Gradients of an indexer's loss against differences of the loss.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>
#include <vector>

#include "core/gradient_tolerance.h"
#include "core/reference/reference_backend.h"

namespace msa::test {

/// Of the mean of kl [Nq, Hkv], which is computed anew for values that are moved by `step`.
class KlDifferences {
public:
    using Signs = std::function<std::vector<bool>()>;

    /// `signs`: of the products that go through ReLU. The loss is not differentiable where one
    /// changes, so such differences are left out.
    KlDifferences(float step, std::function<Tensor<double, 2>()> kl, Signs signs = {})
        : step_(step), kl_(std::move(kl)), signs_(std::move(signs)) {}

    /// `slope`: the most by which a unit of the value moves a logit, in so many rows.
    void expect(float& value, float gradient, double slope, double rows_moved = 1) {
        const float centre = value;
        value = centre + step_;
        const float above = value;
        const auto [up, rows] = loss();
        const std::vector<bool> signs_up = signs_ ? signs_() : std::vector<bool>();
        value = centre - step_;
        const double down = loss().first, below = value;
        const bool same = !signs_ || signs_() == signs_up;
        value = centre;
        if (!same) return;
        ++compared_;
        largest_ = std::max(largest_, std::fabs(double{gradient}));
        EXPECT_NEAR((up - down) / (above - below), gradient,
                    rows_moved / rows * central_difference_bound(step_, slope) +
                        kRoundoff * std::fabs(gradient) + 1e-12 / step_);
    }
    int compared() const { return compared_; }
    double largest() const { return largest_; }  // gradient that was compared

private:
    std::pair<double, double> loss() const {  // the mean, and the number of rows
        const Tensor<double, 2> kl = kl_();
        double sum = 0;
        for (int64_t n = 0; n < kl.size(); ++n) sum += kl.data()[n];
        return {sum / static_cast<double>(kl.size()), static_cast<double>(kl.extent(0))};
    }

    float step_;
    std::function<Tensor<double, 2>()> kl_;
    Signs signs_;
    int compared_ = 0;
    double largest_ = 0;
};

/// Signs of the products q [Nq, H, d] . k [keys, d] in one sequence, a key for `tokens` tokens.
inline std::vector<bool> product_signs(View<const float, 3> q, View<const float, 2> k,
                                       int64_t tokens) {
    std::vector<bool> all;
    for (int64_t i = 0; i < q.extent(0); ++i)
        for (int64_t h = 0; h < q.extent(1); ++h)
            for (int64_t n = 0; n < (i + 1) / tokens; ++n)
                all.push_back(reference::dot(q[i][h], k[n]) > 0);
    return all;
}

}  // namespace msa::test
