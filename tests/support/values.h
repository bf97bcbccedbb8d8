// SPDX-License-Identifier: MIT
// Tensors written out by hand.
#pragma once

#include <algorithm>
#include <vector>

#include "core/tensor.h"

namespace msa::test {

/// A tensor of the given values, row-major; there must be as many as the shape holds.
template <typename T, int Rank>
Tensor<T, Rank> tensor(const Shape<Rank>& shape, const std::vector<T>& values) {
    Tensor<T, Rank> made(shape);
    MSA_CHECK(made.size() == static_cast<int64_t>(values.size()));
    std::copy(values.begin(), values.end(), made.data());
    return made;
}

/// A tensor that holds one value everywhere.
template <typename T, int Rank>
Tensor<T, Rank> filled(const Shape<Rank>& shape, T value) {
    Tensor<T, Rank> made(shape);
    std::fill_n(made.data(), made.size(), value);
    return made;
}

}  // namespace msa::test
