// SPDX-License-Identifier: MIT
#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class KeyDiff : public Policy {
protected:
    std::vector<double> unit_key(int64_t token, int64_t r) const {
        std::vector<double> unit;
        double squares = 0;
        for (int64_t d = 0; d < 16; ++d) {
            unit.push_back(k_(token, r, d));
            squares += unit.back() * unit.back();
        }
        for (double& value : unit) value /= std::sqrt(squares);
        return unit;
    }
    /// Mean of the unit keys that a token sees.
    std::vector<double> anchor(int64_t token, int64_t r) const {
        std::vector<double> mean(16, 0.0);
        for (int64_t j = 0; j <= position(token); ++j) {
            const std::vector<double> unit = unit_key(start(token) + j, r);
            for (size_t d = 0; d < 16; ++d)
                mean[d] += unit[d] / static_cast<double>(position(token) + 1);
        }
        return mean;
    }
};

TEST_F(KeyDiff, IsTheMeanCosineWithTheMeanKey) {
    double least = 1;  // |anchor|
    const auto want = [&](int64_t i, int64_t r, int64_t b) {
        const std::vector<double> mean = anchor(i, r);
        const int64_t end = std::min(16 * b + 15, position(i)) + 1;
        double cosines = 0, squares = 0;
        for (double value : mean) squares += value * value;
        for (int64_t j = 16 * b; j < end; ++j) {
            const std::vector<double> unit = unit_key(start(i) + j, r);
            for (size_t d = 0; d < 16; ++d) cosines -= unit[d] * mean[d] / std::sqrt(squares);
        }
        least = std::min(least, std::sqrt(squares));
        return cosines / static_cast<double>(end - 16 * b);
    };
    const double shortest = 0.02;
    // A sum of 210 unit keys, over its length; then a product with a mean of 16 of them.
    expect_scores(scores("keydiff"), gamma(210 + 20) / shortest + gamma(16 + 16 + 20), want);
    EXPECT_GE(least, shortest);
}

/// 15 keys of a block alike, one apart: the block of that key looks least like the others.
TEST_F(KeyDiff, PrefersTheBlockOfTheOddKey) {
    auto* const k = k_.data();
    std::fill_n(k, k_.size(), 0.0F);
    for (int64_t j = 0; j < 285; ++j)
        for (int64_t r = 0; r < 2; ++r) k[(j * 2 + r) * 16 + (j == 40 ? 1 : 0)] = 3;
    const Tensor<float, 3> got = scores("keydiff");
    for (int64_t b = 0; b < 13; ++b) {
        EXPECT_LE(got(209, 0, b), got(209, 0, 2));
        EXPECT_EQ(got(209, 1, b) < got(209, 1, 2), b != 2) << b;
    }
}

TEST_F(KeyDiff, KeysOfZeroHaveNoDirection) {
    std::fill_n(k_.data(), k_.size(), 0.0F);
    expect_scores(scores("keydiff"), 0, [](int64_t, int64_t, int64_t) { return 0; });
}

TEST_F(KeyDiff, ChunksDoNotMatter) { expect_chunks_do_not_matter("keydiff"); }

}  // namespace
}  // namespace msa::test
