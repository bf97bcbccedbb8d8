// SPDX-License-Identifier: MIT
// Oracles that look at values.
#include <algorithm>

#include "tests/core/select/mass.h"

namespace msa::test {
namespace {

class Oracles : public PolicyOfMass {
protected:
    double norm(int64_t token, int64_t r) const {
        double squares = 0;
        for (int64_t d = 0; d < 16; ++d)
            squares += double{v_(token, r, d)} * double{v_(token, r, d)};
        return std::sqrt(squares);
    }

    /// |o_S - o|^2 over the group's heads, with attention over the keys of the blocks alone.
    double error(int64_t token, int64_t r, const std::vector<bool>& blocks) const {
        double sum = 0;
        for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
            const std::vector<double> weights = attention(token, h);
            double kept = 0;
            for (size_t j = 0; j < weights.size(); ++j)
                if (j / 16 < blocks.size() && blocks[j / 16]) kept += weights[j];
            for (int64_t d = 0; d < 16; ++d) {
                double sparse = 0, dense = 0;
                for (size_t j = 0; j < weights.size(); ++j) {
                    const double part =
                        weights[j] * double{v_(start(token) + static_cast<int64_t>(j), r, d)};
                    dense += part;
                    if (j / 16 < blocks.size() && blocks[j / 16]) sparse += part / kept;
                }
                sum += (sparse - dense) * (sparse - dense);
            }
        }
        return sum;
    }
};

TEST_F(Oracles, OfValuesIsTheMassTimesTheirNorm) {
    const auto want = [&](int64_t i, int64_t r, int64_t b) {
        double sum = 0;
        for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
            const std::vector<double> weights = attention(i, h);
            for (int64_t j = 16 * b; j < std::min(16 * b + 16, length(i)); ++j)
                sum += weights[static_cast<size_t>(j)] * norm(start(i) + j, r) / 2;
        }
        return sum;
    };
    expect_scores(scores("oracle-value"), votes_bound(1) * largest_norm<3>(v_), want);
    expect_chunks_do_not_matter("oracle-value");
}

/// Each block that is picked leaves no larger error than any other would have.
TEST_F(Oracles, OfTheErrorPicksTheBestBlockEachTime) {
    const double bound = 16 * votes_bound(1) * std::pow(largest_norm<3>(v_), 2);
    for (const SelectionRule rule :
         {SelectionRule{.top_k = 5},
          SelectionRule{.top_k = 6, .forced_local = 2, .forced_first = 1}}) {
        const Tensor<float, 3> got = scores("oracle-error", 0, rule);
        int64_t unlike_the_mass = 0;
        for (int64_t i = 0; i < 285; i += 7)
            for (int64_t r = 0; r < 2; ++r) {
                std::vector<std::pair<float, int64_t>> order;
                std::vector<bool> taken(static_cast<size_t>(blocks(i)), false);
                for (int64_t b = 0; b < blocks(i); ++b) {
                    if (is_forced(rule, b, blocks(i)))
                        taken[static_cast<size_t>(b)] = true;
                    else if (got(i, r, b) > 0)
                        order.emplace_back(-got(i, r, b), b);
                }
                const auto free = std::count(taken.begin(), taken.end(), false);
                ASSERT_EQ(std::ssize(order),
                          std::clamp<int64_t>(rule.top_k - rule.forced_first - rule.forced_local, 0,
                                              free))
                    << i;
                std::sort(order.begin(), order.end());
                for (const auto& [score, block] : order) {
                    std::vector<bool> with = taken;
                    with[static_cast<size_t>(block)] = true;
                    const double mine = error(i, r, with);
                    for (int64_t b = 0; b < blocks(i); ++b) {
                        if (taken[static_cast<size_t>(b)]) continue;
                        std::vector<bool> other = taken;
                        other[static_cast<size_t>(b)] = true;
                        ASSERT_LE(mine, error(i, r, other) + bound) << i << ", " << block;
                        unlike_the_mass += mass(i, r, b) > mass(i, r, block) ? 1 : 0;
                    }
                    taken = with;
                }
            }
        EXPECT_GT(unlike_the_mass, 20);
    }
}

TEST_F(Oracles, OfTheErrorGivesTheSameInAnyChunks) { expect_chunks_do_not_matter("oracle-error"); }

}  // namespace
}  // namespace msa::test
