// SPDX-License-Identifier: MIT
// Hierarchical indexing: candidates by means of blocks, and the lightning indexer's tokens in them.
#include <set>

#include "tests/core/select/indexers.h"

namespace msa::test {
namespace {

/// One sequence of 36 tokens in blocks of 8: 4 complete ones and a half. One index head, (1, 0),
/// and keys with one channel.
class HisaByHand : public IndexerByHand {
protected:
    HisaByHand() : IndexerByHand(36, 1) {
        for (int64_t j = 0; j < 36; ++j) index_q_(j, 0, 0) = 1;
        // Means: 0, 1, 2, 0.5. Block 1 has the largest token.
        set(8, 16);
        set(9, -8);
        for (int64_t j = 16; j < 24; ++j) set(j, 2);
        for (int64_t j : {24, 25, 26, 27}) set(j, 1);
        set(33, 3);
    }
    void set(int64_t j, float value) { index_k_(j, 0) = value; }
    /// Scores of the blocks that the query sees.
    std::vector<float> scores(const char* name, int64_t visible) {
        const Tensor<float, 3> all = all_scores(name);
        const float* const row = &all(visible - 1, 0, 0);
        return {row, row + visible_blocks(visible, 8)};
    }
};

constexpr float kOut = -INFINITY;

TEST_F(HisaByHand, OnlyCandidatesHaveScores) {
    using Row = std::vector<float>;
    // The first, the own, and of the others the best mean: block 2, though block 1 has a 16.
    EXPECT_EQ(scores("hisa:candidates=24", 36), (Row{0, kOut, 2, kOut, 3}));
    EXPECT_EQ(scores("hisa:candidates=17", 36), (Row{0, kOut, 2, kOut, 3})) << "3 blocks as well";
    EXPECT_EQ(scores("hisa:candidates=32", 36), (Row{0, 16, 2, kOut, 3}));
    EXPECT_EQ(scores("hisa:candidates=16", 36), (Row{0, kOut, kOut, kOut, 3}));
    EXPECT_EQ(scores("hisa:candidates=8", 36), (Row{kOut, kOut, kOut, kOut, 3}));
    EXPECT_EQ(scores("hisa", 36), (Row{0, 16, 2, 1, 3}));
    EXPECT_EQ(scores("hisa:candidates=24", 32), (Row{0, kOut, 2, 1})) << "the own block is whole";
    EXPECT_EQ(scores("hisa:candidates=24", 3), (Row{0}));
}

TEST_F(HisaByHand, TokensAreThoseOfTheCandidates) {
    EXPECT_EQ(keep("hisa-tokens", 36, 3), (Tokens{8, 16, 33})) << "16, the first 2, 3";
    EXPECT_EQ(find_token_selector("hisa-tokens:candidates=24")->label(),
              "hisa-tokens:candidates=24");
    EXPECT_EQ(keep("hisa-tokens:candidates=24", 36, 3), (Tokens{16, 17, 33}));
    const Tokens all = keep("hisa-tokens:candidates=24", 36, 36);
    EXPECT_EQ(all.size(), 20U) << "no budget brings back what is no candidate";
    EXPECT_EQ(all[8], 16);
}

TEST_F(HisaByHand, TiesGoToTheOlderMeanAndNaNIsTheLast) {
    using Row = std::vector<float>;
    for (int64_t j = 16; j < 24; ++j) set(j, 1);
    EXPECT_EQ(scores("hisa:candidates=24", 36), (Row{0, 16, kOut, kOut, 3}));
    set(10, NAN);
    EXPECT_EQ(scores("hisa:candidates=24", 36), (Row{0, kOut, 1, kOut, 3}));
}

/// The means of the 4 complete blocks, and the visible tokens of 3 of 5 blocks: 8 + 8 + 4.
TEST_F(HisaByHand, CostsMeansAndCandidates) {
    const std::vector<int64_t> last{35};
    const Problem one = p_.with_query_rows(last);
    for (const char* name : {"hisa:candidates=24", "hisa-tokens:candidates=24"}) {
        const PolicyCost cost = make_policy(name)->cost({one});
        EXPECT_NEAR(cost.flops, 2 * 16 * (4 + 20), 1e-9) << name;
        EXPECT_NEAR(cost.bytes, 2 * 16 * (4 + 20), 1e-9) << name;
    }
    EXPECT_NEAR(make_policy("hisa")->cost({one}).flops, 2 * 16 * (4 + 36), 1e-9);
    EXPECT_NEAR(make_policy("hisa:candidates=8")->cost({one}).flops, 2 * 16 * (4 + 4), 1e-9);
}

class HisaLearned : public LearnedDsa {
protected:
    std::set<int64_t> candidates(int64_t token, int64_t most) const {
        const int64_t all = blocks(token);
        std::set<int64_t> in{0, all - 1};
        while (std::ssize(in) < std::min(most, all)) {
            int64_t best = -1;
            double top = -HUGE_VAL;
            for (int64_t b = 1; b + 1 < all; ++b)
                if (const double of = learned(token, 16 * b, 16); !in.contains(b) && of > top) {
                    top = of;
                    best = b;
                }
            in.insert(best);
        }
        return in;
    }
};

/// Of two packed sequences of 210 and 75 tokens, neither a whole number of blocks.
TEST_F(HisaLearned, IsItsRuleInDouble) {
    const std::string name = "hisa:candidates=80";  // 5 blocks
    const Tensor<float, 3> got = scores(name), tokens = scores("dsa");
    int64_t dropped = 0;
    for (int64_t i = 0; i < p_.queries(); ++i) {
        const std::set<int64_t> in = candidates(i, 5);
        for (int64_t b = 0; b < blocks(i); ++b)
            for (int64_t r = 0; r < 2; ++r) {
                ASSERT_EQ(got(i, r, b), in.contains(b) ? tokens(i, r, b) : kOut) << i << ", " << b;
                dropped += !in.contains(b);
            }
    }
    EXPECT_GT(dropped, 1000);
    expect_chunks_do_not_matter(name);
}

/// Where all are candidates, HISA is DSA.
TEST_F(HisaLearned, WithEnoughCandidatesIsTheLightningIndexer) {
    const Tensor<float, 3> got = scores("hisa"), want = scores("dsa");
    const SelectorLayer layer = selector_layer();
    std::vector<int64_t> rows(285);
    std::iota(rows.begin(), rows.end(), 0);
    const SelectorChunk chunk = selector_chunk(layer, p_, rows);
    KeptTokens kept[2];
    for (int n = 0; n < 2; ++n) {
        const auto policy = find_token_selector(n == 0 ? "hisa-tokens" : "dsa-tokens");
        policy->prepare(layer);
        kept[n] = policy->select(layer, chunk, std::vector<int64_t>{40}).front();
    }
    for (int64_t i = 0; i < 285; ++i) {
        for (int64_t b = 0; b < blocks(i); ++b) ASSERT_EQ(got(i, 0, b), want(i, 0, b)) << i;
        ASSERT_EQ(kept[0][static_cast<size_t>(i)], kept[1][static_cast<size_t>(i)]) << i;
    }
}

}  // namespace
}  // namespace msa::test
