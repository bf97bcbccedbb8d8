// SPDX-License-Identifier: MIT
// Comparisons with readable failures.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/problem.h"
#include "core/selection.h"
#include "core/tensor.h"

namespace msa::test {

/// "[3, 0, 17]" of a flat offset.
template <int Rank>
std::string position(const Shape<Rank>& shape, int64_t flat) {
    Shape<Rank> at{};
    for (size_t axis = Rank; axis-- > 0;) {
        at[axis] = flat % shape[axis];
        flat /= shape[axis];
    }
    return to_string(at);
}

/// NaN and infinities must stand in the same places; all else within `bound`, absolute. Reports
/// the worst element and how many fail.
template <typename T, int Rank>
testing::AssertionResult close(View<const T, Rank> got, View<const T, Rank> want, double bound) {
    if (got.shape() != want.shape())
        return testing::AssertionFailure()
               << "shape " << to_string(got.shape()) << ", want " << to_string(want.shape());
    int64_t failures = 0, worst = -1;
    double worst_error = -1;
    for (int64_t i = 0; i < got.size(); ++i) {
        const double g = got.data()[i], w = want.data()[i];
        const bool finite = std::isfinite(g) && std::isfinite(w);
        const bool same = g == w || (std::isnan(g) && std::isnan(w));
        const double error = finite ? std::fabs(g - w) : (same ? 0 : HUGE_VAL);
        if (error <= bound) continue;
        ++failures;
        if (error > worst_error) {
            worst_error = error;
            worst = i;
        }
    }
    if (failures == 0) return testing::AssertionSuccess();
    return testing::AssertionFailure()
           << failures << " of " << got.size() << " elements differ; worst at "
           << position<Rank>(got.shape(), worst) << ": got " << got.data()[worst] << ", want "
           << want.data()[worst] << ", bound " << bound;
}

template <typename T, int Rank>
testing::AssertionResult close(const Tensor<T, Rank>& got, const Tensor<T, Rank>& want,
                               double bound) {
    return close<T, Rank>(got.view(), want.view(), bound);
}

/// Equal, NaN to NaN.
template <typename T, int Rank>
testing::AssertionResult identical(const Tensor<T, Rank>& got, const Tensor<T, Rank>& want) {
    return close(got, want, 0.0);
}

/// selection_fault() finds nothing.
testing::AssertionResult selection_follows(const Problem&, const SelectionRule&,
                                           View<const float, 3> scores, View<const int32_t, 3> ids,
                                           double bound);

}  // namespace msa::test
