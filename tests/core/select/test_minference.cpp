// SPDX-License-Identifier: MIT
#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class MInference : public Policy {};

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
    const SelectionRule rule = make_selector("minference-vs")->adjust({.top_k = 3}, 0);
    EXPECT_EQ(rule, (SelectionRule{.top_k = 3, .forced_local = 1, .forced_first = 1}));
    EXPECT_EQ(make_selector("minference-vs")->adjust({.top_k = 1}, 0), (SelectionRule{.top_k = 1}));
}

TEST_F(MInference, BlockSparseComparesMeans) {
    const auto want = [&](int64_t i, int64_t r, int64_t b) {
        // Keys behind the query stay out of its own block, which is forced anyway.
        if (b == blocks(i) - 1) return std::nan("");
        const std::vector<double> key = mean_key(i, r, b);
        double sum = 0;
        for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
            const std::vector<double> query = mean_query(i, h, blocks(i) - 1);
            for (size_t d = 0; d < 16; ++d) sum += query[d] * key[d];
        }
        return sum;
    };
    const Tensor<float, 3> got = scores("minference-bs");
    const double bound =
        gamma(2 + 16 + 16 + 16 + 3) * 2 * largest_norm<3>(q_) * largest_norm<3>(k_);
    for (int64_t i = 0; i < 285; ++i)
        for (int64_t r = 0; r < 2; ++r)
            for (int64_t b = 0; b + 1 < blocks(i); ++b)
                ASSERT_NEAR(got(i, r, b), want(i, r, b), bound) << i << ", " << b;
}

/// None of the three patterns has a first block that is always there, as the original's search.
TEST(MInferenceRule, ForcesNoFirstBlock) {
    const SelectionRule rule{.top_k = 4};
    EXPECT_EQ(make_selector("minference")->adjust(rule, 0), rule);
}

/// The pattern that is chosen for a group keeps no less on the sample than the others.
TEST_F(MInference, SearchTakesThePatternThatKeepsMost) {
    const SelectionRule rule{.top_k = 4};
    const Tensor<float, 3> got = scores("minference", 0, rule), mass = mass_of(p_, q_.view());
    const std::vector<const char*> patterns{"minference-vs", "window", "minference-bs"};
    for (int64_t r = 0; r < 2; ++r) {
        std::vector<double> kept;
        std::vector<bool> chosen;
        for (const char* pattern : patterns) {
            const Tensor<float, 3> by = scores(pattern, 0, rule);
            Tensor<int32_t, 3> ids({285, 2, 4});
            const SelectionRule own = make_selector(pattern)->adjust(rule, 0);
            backend_->select_blocks(p_, own, by, ids);
            double sum = 0;
            for (int64_t n = 1; n <= 64; ++n)  // evenly in the later half of the first sequence
                for (int32_t b : selected(ids, 105 + 105 * n / 64 - 1, r))
                    sum += double{mass(105 + 105 * n / 64 - 1, r, b)};
            kept.push_back(sum);
            bool same = true;
            for (int64_t i = 0; i < 285; ++i)
                for (int64_t b = own.forced_first; b < blocks(i); ++b)
                    same &= got(i, r, b) == by(i, r, b);
            chosen.push_back(same);
        }
        EXPECT_EQ(std::count(chosen.begin(), chosen.end(), true), 1) << r;
        for (size_t n = 0; n < patterns.size(); ++n)
            if (chosen[n]) {
                EXPECT_EQ(kept[n], *std::max_element(kept.begin(), kept.end())) << patterns[n];
            }
    }
}

TEST_F(MInference, ChunksDoNotMatter) {
    for (const char* name : {"minference-vs", "minference-bs", "minference"})
        expect_chunks_do_not_matter(name);
}

}  // namespace
}  // namespace msa::test
