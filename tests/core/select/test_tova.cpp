// SPDX-License-Identifier: MIT
#include <set>

#include "tests/core/select/mass.h"

namespace msa::test {
namespace {

class Tova : public PolicyOfMass {};

/// Follows the cache of one group: what the rule says, with sets.
TEST_F(Tova, KeepsWhatTheQueryBeforeLookedAt) {
    const int64_t prompt = 70;
    const Tensor<float, 3> got = scores("tova", prompt, {.top_k = 3});
    int64_t evictions = 0;
    for (int64_t r = 0; r < 2; ++r) {
        std::set<int64_t> cache;
        std::vector<double> received;
        for (int64_t i = 0; i < 285; ++i) {
            if (position(i) < prompt - 1) continue;
            if (position(i) == prompt - 1) {  // the prompt's last query sees it whole
                received.assign(14, 0.0);
                cache.clear();
                for (int64_t b = 0; b < blocks(i); ++b) {
                    cache.insert(b);
                    received[static_cast<size_t>(b)] = mass(i, r, b);
                }
                continue;
            }
            cache.insert(blocks(i) - 1);
            for (int64_t b = 0; b < blocks(i); ++b) {
                if (cache.contains(b)) {
                    ASSERT_NEAR(got(i, r, b), received[static_cast<size_t>(b)], votes_bound(2))
                        << i << ", " << b;
                } else {
                    ASSERT_EQ(got(i, r, b), -INFINITY) << i << ", " << b;
                }
            }
            while (std::ssize(cache) > 3) {  // the least of those that are not the query's own
                int64_t least = *cache.begin();
                for (int64_t b : cache)
                    if (b < blocks(i) - 1 &&
                        received[static_cast<size_t>(b)] < received[static_cast<size_t>(least)])
                        least = b;
                cache.erase(least);
                ++evictions;
            }
            double kept = 0;
            for (int64_t b : cache) kept += mass(i, r, b);
            for (int64_t b : cache) received[static_cast<size_t>(b)] = mass(i, r, b) / kept;
        }
    }
    EXPECT_GT(evictions, 10);
    EXPECT_TRUE(make_selector("tova")->needs().phases == Phases::decode);
}

TEST_F(Tova, ChunksDoNotMatter) { expect_chunks_do_not_matter("tova", 40); }

}  // namespace
}  // namespace msa::test
