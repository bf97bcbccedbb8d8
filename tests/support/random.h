// SPDX-License-Identifier: MIT
// Random test data. The seed is fixed, printed with every test program, and replaced by
// MSA_TEST_SEED.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

#include "core/tensor.h"

namespace msa::test {

inline uint64_t seed() {
    static const uint64_t value = [] {
        const char* set = std::getenv("MSA_TEST_SEED");
        return set != nullptr ? std::strtoull(set, nullptr, 10) : uint64_t{20260101};
    }();
    return value;
}

/// Independent standard normals times `sigma`; `stream` tells the operands of one case apart.
template <int Rank>
Tensor<float, Rank> normal(const Shape<Rank>& shape, uint64_t stream, float sigma = 1.0F) {
    std::mt19937_64 generator(seed() * 1000003 + stream);
    std::normal_distribution<float> distribution(0.0F, sigma);
    Tensor<float, Rank> tensor(shape);
    for (int64_t i = 0; i < tensor.size(); ++i) tensor.data()[i] = distribution(generator);
    return tensor;
}

}  // namespace msa::test
