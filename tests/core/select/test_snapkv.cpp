// SPDX-License-Identifier: MIT
#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class SnapKv : public Policy {
protected:
    /// Votes of the 32 queries before position `end` for block b of group r, or -1 where the block
    /// is theirs or newer.
    double vote(int64_t token, int64_t r, int64_t b, int64_t end) const {
        if (16 * b + 16 > end - 32) return -1;
        std::vector<double> received(static_cast<size_t>(end - 32), 0.0);
        for (int64_t i = end - 32; i < end; ++i)
            for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
                const std::vector<double>& weights = kept_attention(start(token) + i, h);
                for (size_t j = 0; j < received.size(); ++j) received[j] += weights[j] / 2;
            }
        double sum = 0;
        for (int64_t j = 16 * b; j < 16 * b + 16; ++j) {
            double top = 0;
            for (int64_t n = j - 3; n <= j + 3; ++n)
                if (n >= 0 && n < end - 32) top = std::max(top, received[static_cast<size_t>(n)]);
            sum += top;
        }
        return sum;
    }

    void expect_votes(int64_t prompt, const std::function<int64_t(int64_t)>& end_of) const {
        const Tensor<float, 3> got = scores("snapkv", prompt);
        for (int64_t i = 0; i < 285; i += 5)
            for (int64_t r = 0; position(i) >= prompt && r < 2; ++r)
                for (int64_t b = 0; b < blocks(i); ++b) {
                    const double want = vote(i, r, b, end_of(i));
                    if (want >= 0) {
                        ASSERT_NEAR(got(i, r, b), want, votes_bound(16 * 32)) << i << ", " << b;
                    } else if (b > 0) {  // above every vote, and the newer the higher
                        ASSERT_GT(got(i, r, b), std::max(got(i, r, b - 1), 16 * 32.0F));
                    }
                }
    }
};

TEST_F(SnapKv, PrefillObservesEvery32Queries) {
    expect_votes(0, [&](int64_t i) { return position(i) / 32 * 32; });
}

/// At the prompt's end the cache is cut to the budget; all that is decoded is added to it.
TEST_F(SnapKv, DecodeAddsNewTokensToWhatWasKeptOfThePrompt) {
    const int64_t prompt = 140, all = 140 / 16 + 1;
    const SelectionRule rule{.top_k = 5};
    EXPECT_EQ(make_selector("snapkv")->adjust(rule, prompt).top_k, kUneven);
    EXPECT_EQ(make_selector("snapkv")->adjust(rule, 0), rule);
    const Tensor<float, 3> got = scores("snapkv", prompt, rule);
    for (int64_t i = prompt; i < 210; ++i)
        for (int64_t r = 0; r < 2; ++r) {
            int64_t of_prompt = 0;
            double least = HUGE_VAL, most = 0;
            for (int64_t b = 0; b < blocks(i); ++b) {
                const double want = vote(i, r, b, prompt);
                const bool kept = got(i, r, b) > -INFINITY;
                of_prompt += kept && b < all;
                if (want < 0) {
                    EXPECT_TRUE(kept) << "the voters' blocks and all newer ones";
                } else {
                    (kept ? least : most) = kept ? std::min(least, want) : std::max(most, want);
                    if (kept) {
                        EXPECT_NEAR(got(i, r, b), want, votes_bound(16 * 32));
                    }
                }
            }
            EXPECT_EQ(of_prompt, 5) << i;
            EXPECT_GE(least, most - votes_bound(16 * 32));
        }
}

TEST_F(SnapKv, ChunksDoNotMatter) {
    expect_chunks_do_not_matter("snapkv");
    expect_chunks_do_not_matter("snapkv", 70);
}

}  // namespace
}  // namespace msa::test
