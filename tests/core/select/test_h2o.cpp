// SPDX-License-Identifier: MIT
#include <set>

#include "tests/core/select/mass.h"

namespace msa::test {
namespace {

class H2o : public PolicyOfMass {};

TEST_F(H2o, OracleAddsTheDenseAttentionOfAllQueriesBefore) {
    for (int64_t prompt : {0, 40}) {
        std::vector<std::vector<double>> received(2, std::vector<double>(14, 0.0));
        const Tensor<float, 3> got = scores("h2o-oracle", prompt);
        for (int64_t i = 0; i < 285; ++i)
            for (int64_t r = 0; r < 2; ++r) {
                auto& sums = received[static_cast<size_t>(r)];
                if (position(i) == 0) std::fill(sums.begin(), sums.end(), 0.0);
                for (int64_t b = 0; b < blocks(i); ++b) {
                    if (position(i) >= prompt) {
                        ASSERT_NEAR(got(i, r, b), sums[static_cast<size_t>(b)], votes_bound(210))
                            << i << ", " << b;
                    }
                    sums[static_cast<size_t>(b)] += mass(i, r, b);
                }
            }
    }
}

/// Follows the cache of one group: what the rule says, with sets.
TEST_F(H2o, EvictsForGoodAndNormalisesOverTheSurvivors) {
    const SelectionRule rule{.top_k = 4};  // 2 newest, 2 heaviest
    const Tensor<float, 3> got = scores("h2o-streamed", 0, rule);
    int64_t evictions = 0;
    for (int64_t r = 0; r < 2; ++r) {
        std::set<int64_t> cache;
        std::vector<double> received;
        for (int64_t i = 0; i < 285; ++i) {
            if (position(i) == 0) {
                cache.clear();
                received.assign(14, 0.0);
            }
            cache.insert(blocks(i) - 1);
            for (int64_t b = 0; b < blocks(i); ++b) {
                if (cache.contains(b)) {
                    ASSERT_NEAR(got(i, r, b), received[static_cast<size_t>(b)], votes_bound(420))
                        << i << ", " << b;
                } else {
                    ASSERT_EQ(got(i, r, b), -INFINITY) << i << ", " << b;
                }
            }
            while (std::ssize(cache) > 4) {  // the least of those that are not the newest two
                int64_t least = *cache.begin();
                for (int64_t b : cache)
                    if (b < blocks(i) - 2 &&
                        received[static_cast<size_t>(b)] < received[static_cast<size_t>(least)])
                        least = b;
                cache.erase(least);
                ++evictions;
            }
            double kept = 0;
            for (int64_t b : cache) kept += mass(i, r, b);
            for (int64_t b : cache) received[static_cast<size_t>(b)] += mass(i, r, b) / kept;
        }
    }
    EXPECT_GT(evictions, 10);
}

/// The source attends to the prompt densely: nothing is lost before the first decoded token.
TEST_F(H2o, EvictionStartsWithDecoding) {
    const Tensor<float, 3> got = scores("h2o", 70, {.top_k = 2}), dense = scores("h2o-oracle", 70);
    for (int64_t r = 0; r < 2; ++r)
        for (int64_t b = 0; b < blocks(70); ++b)
            EXPECT_EQ(got(70, r, b), dense(70, r, b)) << "all that the prompt paid";
    int64_t evicted = 0;
    for (int64_t b = 0; b < blocks(71); ++b) evicted += got(71, 0, b) == -INFINITY;
    EXPECT_EQ(evicted, blocks(70) - 2);
    EXPECT_TRUE(make_selector("h2o")->needs().phases == Phases::decode);
    EXPECT_TRUE(make_selector("h2o-streamed")->needs().phases == Phases::prefill);
}

TEST_F(H2o, HalfTheBudgetIsTheNewest) {
    for (const char* name : {"h2o", "h2o-streamed", "h2o-oracle"})
        EXPECT_EQ(make_selector(name)->adjust({.top_k = 7}, 0),
                  (SelectionRule{.top_k = 7, .forced_local = 3}));
}

TEST_F(H2o, ChunksDoNotMatter) {
    expect_chunks_do_not_matter("h2o-streamed");
    expect_chunks_do_not_matter("h2o", 40);
    expect_chunks_do_not_matter("h2o-oracle", 40);
}

TEST_F(H2o, ThePreviousLayersMassIsTakenOver) {
    const Tensor<float, 3> got = scores("previous-layer");  // given this layer's in its place
    expect_scores(got, votes_bound(1),
                  [&](int64_t i, int64_t r, int64_t b) { return mass(i, r, b); });
}

}  // namespace
}  // namespace msa::test
