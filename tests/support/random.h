// SPDX-License-Identifier: MIT
// Random test data. The seed is fixed, printed with every test program, and replaced by
// MSA_TEST_SEED.
#pragma once

#include <cstdint>
#include <cstdlib>

#include "core/tensor.h"

namespace msa::test {

inline uint64_t seed() {
    static const uint64_t value = [] {
        const char* set = std::getenv("MSA_TEST_SEED");
        return set != nullptr ? std::strtoull(set, nullptr, 10) : uint64_t{20260101};
    }();
    return value;
}

/// Independent normals by Marsaglia's polar method, as libstdc++ draws them. Without optimisation
/// its normal_distribution takes logarithms of long double beside, for each: two fifths of the time
/// of test_backends under the address sanitizer.
void fill_with_normals(float* values, int64_t count, uint64_t stream, float sigma);

/// Independent standard normals times `sigma`; `stream` tells the operands of one case apart.
template <int Rank>
Tensor<float, Rank> normal(const Shape<Rank>& shape, uint64_t stream, float sigma = 1.0F) {
    Tensor<float, Rank> tensor(shape);
    fill_with_normals(tensor.data(), tensor.size(), stream, sigma);
    return tensor;
}

}  // namespace msa::test
