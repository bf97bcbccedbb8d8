// SPDX-License-Identifier: MIT
// Qwen's sparse attention: means of 4 index keys, the best of them, and the unfinished tail.
#include <set>

#include "tests/core/select/indexers.h"

namespace msa::test {
namespace {

/// 14 keys whose first two channels are given, and one query at each of them with two index heads:
/// (1, 0) and (0, -1).
class QsaByHand : public IndexerByHand {
protected:
    static constexpr int64_t kKeys = 14;

    QsaByHand() : IndexerByHand(kKeys, 2) {
        // Means of four: (2, 1), (-1, -3), (1, 3). Two more keys are no four.
        constexpr float kFirst[kKeys] = {8, 0, 0, 0, -1, -1, -1, -1, 0, 0, 4, 0, 90, 90};
        constexpr float kSecond[kKeys] = {1, 1, 1, 1, -12, 0, 0, 0, 3, 3, 3, 3, -90, -90};
        for (int64_t j = 0; j < kKeys; ++j) {
            index_k_(j, 0) = kFirst[j];
            index_k_(j, 1) = kSecond[j];
            index_q_(j, 0, 0) = 1;
            index_q_(j, 1, 1) = -1;
        }
    }
    Tensor<float, 3> scores(const char* name) { return all_scores(name); }
    Tokens keep(int64_t visible, int64_t budget, const char* name = "qsa-tokens") {
        return IndexerByHand::keep(name, visible, budget);
    }
};

/// ReLU(2) + ReLU(-1) = 2, ReLU(-1) + ReLU(3) = 3, ReLU(1) + ReLU(-3) = 1.
TEST_F(QsaByHand, ABlockIsItsBestMeanOfFour) {
    const Tensor<float, 3> got = scores("qsa");
    for (int64_t r = 0; r < 2; ++r) {
        EXPECT_EQ(got(13, r, 0), 3);
        EXPECT_EQ(got(13, r, 1), INFINITY) << "tokens 12 and 13 are the tail";
        EXPECT_EQ(got(11, r, 1), 1) << "12 keys have no tail";
        EXPECT_EQ(got(9, r, 1), INFINITY);
        EXPECT_EQ(got(3, r, 0), 2) << "one mean is complete";
        EXPECT_EQ(got(2, r, 0), INFINITY) << "none is";
    }
}

TEST_F(QsaByHand, TheBestFoursAndTheTailAreKept) {
    EXPECT_EQ(keep(14, 14), (Tokens{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}));
    EXPECT_EQ(keep(14, 10), (Tokens{0, 1, 2, 3, 4, 5, 6, 7, 12, 13}));
    EXPECT_EQ(keep(14, 9), (Tokens{4, 5, 6, 7, 12, 13})) << "whole fours alone";
    EXPECT_EQ(keep(14, 5), (Tokens{12, 13}));
    EXPECT_EQ(keep(14, 1), (Tokens{13})) << "the newest of the tail";
    EXPECT_EQ(keep(12, 8), (Tokens{0, 1, 2, 3, 4, 5, 6, 7})) << "a finished four stays for none";
    EXPECT_EQ(keep(3, 8), (Tokens{0, 1, 2}));
}

/// Two keys: (4, 1), (0, 1), (-1, -6), (-1, 0), (0, 3), (2, 3), (90, -90).
TEST_F(QsaByHand, CompressSaysHowManyKeysAMeanIsOf) {
    EXPECT_EQ(scores("qsa:compress=2")(13, 0, 0), 6);
    EXPECT_EQ(scores("qsa:compress=2")(13, 0, 1), 180);
    EXPECT_EQ(keep(13, 5, "qsa-tokens:compress=2"), (Tokens{0, 1, 4, 5, 12}));
}

/// Of blocks of 3 tokens, one that a mean reaches into has its score, and one that the tail reaches
/// into is kept.
TEST_F(QsaByHand, MeansReachOverTheEndsOfBlocks) {
    p_.block_size = 3;
    const Tensor<float, 3> got = scores("qsa");
    EXPECT_EQ(got(13, 0, 0), 2);  // tokens 0 to 2
    EXPECT_EQ(got(13, 0, 1), 3);  // 3, and 4 and 5 of the second mean
    EXPECT_EQ(got(13, 0, 2), 3);
    EXPECT_EQ(got(13, 0, 3), 1);
    EXPECT_EQ(got(13, 0, 4), INFINITY);
    EXPECT_EQ(got(9, 0, 2), INFINITY) << "token 8, of the tail 8 and 9";
}

TEST_F(QsaByHand, TiesGoToTheOlderAndNaNIsTheLast) {
    for (int64_t j = 4; j < 8; ++j) index_k_(j, 1) = -1.25F;  // -1 and 1.25: below 2
    for (int64_t j = 8; j < 12; ++j) index_k_(j, 0) = 1.25F;  // 1.25 as well
    EXPECT_EQ(keep(14, 10), (Tokens{0, 1, 2, 3, 4, 5, 6, 7, 12, 13}));
    index_k_(0, 0) = NAN;
    EXPECT_EQ(keep(14, 10), (Tokens{4, 5, 6, 7, 8, 9, 10, 11, 12, 13}));
    EXPECT_EQ(keep(14, 14).size(), 14U) << "what the budget has room for is kept";
    EXPECT_EQ(scores("qsa")(13, 0, 0), 1.25F) << "the block's other mean";
}

/// An indexer that says nothing: all scores are 0, the oldest are kept, and the tail.
TEST_F(QsaByHand, WithoutASayTheOldestAreKept) {
    std::fill_n(index_q_.data(), index_q_.size(), 0.0F);
    EXPECT_EQ(keep(14, 10), (Tokens{0, 1, 2, 3, 4, 5, 6, 7, 12, 13}));
    EXPECT_EQ(scores("qsa")(13, 0, 0), 0);
}

class Qsa : public Policy {
protected:
    /// The rule on means [4n, 4n + 4) of the token's sequence, in double.
    double mean_score(int64_t token, int64_t n) const {
        double sum = 0;
        for (int64_t r = 0; r < 2; ++r) {
            double dot = 0;
            for (int64_t j = 4 * n; j < 4 * n + 4; ++j)
                for (int64_t d = 0; d < 16; ++d)
                    dot +=
                        double{index_q_(token, r, d)} * double{index_k_(start(token) + j, d)} / 4;
            sum += std::max(0.0, dot);
        }
        return sum;
    }
    double bound() const {
        return gamma(16 + 8) * 2 * largest_norm<3>(index_q_) * largest_norm<2>(index_k_);
    }
};

TEST_F(Qsa, IsItsRuleInDouble) {
    const Tensor<float, 3> got = scores("qsa");
    for (int64_t i = 0; i < p_.queries(); ++i) {
        const int64_t visible = position(i) + 1, whole = visible / 4;
        for (int64_t b = 0; b < blocks(i); ++b) {
            if (b == blocks(i) - 1 && visible % 4 != 0) {
                ASSERT_EQ(got(i, 0, b), INFINITY) << i;
                continue;
            }
            double top = -HUGE_VAL;
            for (int64_t n = 4 * b; n < std::min(4 * b + 4, whole); ++n)
                top = std::max(top, mean_score(i, n));
            ASSERT_NEAR(got(i, 0, b), top, bound()) << i << ", " << b;
            ASSERT_EQ(got(i, 1, b), got(i, 0, b));
        }
    }
    expect_chunks_do_not_matter("qsa");
}

TEST_F(Qsa, TokensAreThoseOfTheBestMeans) {
    const std::unique_ptr<TokenSelector> selector = find_token_selector("qsa-tokens");
    const SelectorLayer layer = selector_layer();
    selector->prepare(layer);
    std::vector<int64_t> rows(285);
    std::iota(rows.begin(), rows.end(), 0);
    const KeptTokens all =
        selector->select(layer, selector_chunk(layer, p_, rows), std::vector<int64_t>{30}).front();
    for (int64_t i = 0; i < 285; ++i) {
        const std::vector<int64_t>& kept = all[static_cast<size_t>(i)];
        const std::set<int64_t> set(kept.begin(), kept.end());
        ASSERT_TRUE(std::is_sorted(kept.begin(), kept.end()));
        const int64_t visible = position(i) + 1, tail = visible % 4;
        ASSERT_EQ(std::ssize(set), tail + 4 * std::min((30 - tail) / 4, visible / 4)) << i;
        for (int64_t j = visible - tail; j < visible; ++j) ASSERT_TRUE(set.contains(j)) << i;
        double least = HUGE_VAL, most = -HUGE_VAL;
        for (int64_t n = 0; n < visible / 4; ++n) {
            const double score = mean_score(i, n);
            (set.contains(4 * n) ? least = std::min(least, score) : most = std::max(most, score));
            for (int64_t j = 1; j < 4; ++j)
                ASSERT_EQ(set.contains(4 * n), set.contains(4 * n + j)) << i;
        }
        ASSERT_GE(least, most - 2 * bound()) << i;
    }
}

/// Where a block is a mean, both forms keep the same: the tail and the best k - 1 complete blocks.
TEST_F(Qsa, WithAMeanForABlockBothFormsKeepTheSame) {
    p_.block_size = 8;
    const Tensor<float, 3> by = scores("qsa:compress=8");
    Tensor<int32_t, 3> ids({285, 2, 6});
    backend_->select_blocks(p_, {.top_k = 6}, by, ids);
    const std::unique_ptr<msa::Policy> policy = make_policy("qsa-tokens:compress=8");
    auto& tokens = dynamic_cast<TokenSelector&>(*policy);
    const SelectorLayer layer = selector_layer();
    tokens.prepare(layer);
    std::vector<int64_t> rows(285);
    std::iota(rows.begin(), rows.end(), 0);
    const SelectorChunk chunk = selector_chunk(layer, p_, rows);
    for (int64_t tail = 1; tail < 8; ++tail) {
        const KeptTokens kept =
            tokens.select(layer, chunk, std::vector<int64_t>{5 * 8 + tail}).front();
        for (int64_t i = 0; i < 285; ++i) {
            if ((position(i) + 1) % 8 != tail) continue;
            std::vector<int64_t> want;
            for (const int32_t b : selected(ids, i, 0))
                for (int64_t j = 8 * b; j < std::min<int64_t>(8 * b + 8, position(i) + 1); ++j)
                    want.push_back(j);
            ASSERT_EQ(kept[static_cast<size_t>(i)], want) << i;
        }
    }
}

/// 52 means of 4 in 210 tokens: n of them are seen by 4 queries, 52 by 3; 18 of 75 likewise.
TEST_F(Qsa, CostsAProductPerMean) {
    const double means = 4 * (51 * 52 / 2) + 3 * 52 + 4 * (18 * 19 / 2);
    for (const char* name : {"qsa", "qsa-tokens"}) {
        const PolicyCost cost = make_policy(name)->cost({p_});
        EXPECT_NEAR(cost.flops, 2 * 2 * 16 * means, 1e-9 * cost.flops) << name;
        EXPECT_NEAR(cost.bytes, 2 * 16 * means, 1e-9 * cost.bytes) << name;
    }
}

}  // namespace
}  // namespace msa::test
