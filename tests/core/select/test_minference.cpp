// SPDX-License-Identifier: MIT
#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class MInference : public Policy {
protected:
    /// Attention of the last `probe` queries before `end` on the keys of block b, and on its
    /// distances from the query.
    double lines(int64_t token, int64_t r, int64_t b, int64_t probe, int64_t end) const {
        double sum = 0;
        for (int64_t i = std::max<int64_t>(0, end - probe); i < end; ++i)
            for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
                const std::vector<double> weights = attention(start(token) + i, h);
                for (int64_t j = 16 * b; j <= std::min(16 * b + 15, position(token)); ++j) {
                    if (j <= i) sum += weights[static_cast<size_t>(j)];
                    const int64_t distance = position(token) - j;
                    if (distance <= i) sum += weights[static_cast<size_t>(i - distance)];
                }
            }
        return sum;
    }
};

TEST_F(MInference, VerticalSlashAddsKeysAndDistances) {
    expect_scores(scores("minference-vs"), votes_bound(2 * 2 * 64),
                  [&](int64_t i, int64_t r, int64_t b) { return lines(i, r, b, 64, length(i)); });
}

TEST_F(MInference, VerticalSlashOfDecodeLooksAtThePromptsEnd) {
    expect_scores(
        scores("minference-vs", 70), votes_bound(2 * 2 * 64),
        [&](int64_t i, int64_t r, int64_t b) { return lines(i, r, b, 64, 70); }, 70);
}

TEST_F(MInference, VerticalSlashForcesTheFirstAndTheLocalBlock) {
    const SelectionRule rule = make_selector("minference-vs")->adjust({.top_k = 3});
    EXPECT_EQ(rule, (SelectionRule{.top_k = 3, .forced_local = 1, .forced_first = 1}));
    EXPECT_EQ(make_selector("minference-vs")->adjust({.top_k = 1}), (SelectionRule{.top_k = 1}));
}

TEST_F(MInference, ChunksDoNotMatter) { expect_chunks_do_not_matter("minference-vs"); }

}  // namespace
}  // namespace msa::test
