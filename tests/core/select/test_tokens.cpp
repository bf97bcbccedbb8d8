// SPDX-License-Identifier: MIT
// Policies of tokens, and the block form of the lightning indexer.
#include <set>

#include "core/gradient_tolerance.h"
#include "core/select/best_blocks.h"
#include "core/select/lightning.h"
#include "tests/core/select/indexers.h"

namespace msa::test {
namespace {

class TokenPolicies : public Policy {
protected:
    double lightning(int64_t token, int64_t j) const {
        double sum = 0;
        for (int64_t r = 0; r < 2; ++r) {
            double dot = 0;
            for (int64_t d = 0; d < 16; ++d)
                dot += double{index_q_(token, r, d)} * double{index_k_(start(token) + j, d)};
            sum += std::max(0.0, dot);
        }
        return sum;
    }
    using Tokens = std::vector<int64_t>;
    /// What a policy keeps of `budget` at the query that sees `visible` keys.
    Tokens keep(const char* name, int64_t visible, int64_t budget) const {
        const SelectorLayer layer = selector_layer();
        const std::vector<int64_t> row{visible - 1};
        const Problem one = p_.with_query_rows(row);
        return find_token_selector(name)
            ->select(layer, selector_chunk(layer, one, row), std::vector<int64_t>{budget})
            .front()
            .front();
    }
    double bound() const {
        return gamma(16 + 4) * 2 * largest_norm<3>(index_q_) * largest_norm<2>(index_k_);
    }
};

class LearnedLightning : public LearnedDsa {
protected:
    double learned_bound() const {
        return lightning_bound(1, 3 * largest_norm<3>(dsa_w_), largest_norm<3>(dsa_q_),
                               largest_norm<3>(dsa_k_), 32, 3);
    }
};

TEST_F(TokenPolicies, LightningIndexerOfBlocksIsItsLargestToken) {
    expect_scores(scores("dsa"), bound(), [&](int64_t i, int64_t, int64_t b) {
        double top = 0;
        for (int64_t j = 16 * b; j <= std::min(16 * b + 15, position(i)); ++j)
            top = std::max(top, lightning(i, j));
        return top;
    });
}

TEST_F(LearnedLightning, OfBlocksIsItsLargestToken) {
    const auto largest = [&](int64_t i, int64_t, int64_t b) {
        double top = -HUGE_VAL;
        for (int64_t j = 16 * b; j <= std::min(16 * b + 15, position(i)); ++j)
            top = std::max(top, learned(i, j));
        return top;
    };
    expect_scores(scores("dsa"), learned_bound(), largest);
    expect_chunks_do_not_matter("dsa");
    dsa_w_.data()[100] *= -1;  // of one head and query: its weight has a say
    const Tensor<float, 3> other = scores("dsa");
    dsa_w_.data()[100] *= -1;
    double change = 0;
    for (int64_t b = 0; b < blocks(33); ++b)
        change = std::max(change, std::fabs(other(33, 0, b) - largest(33, 0, b)));
    EXPECT_GT(change, 10 * learned_bound());
}

/// The pieces that reach into the block and that the query sees as a whole; 5 do not divide a
/// block.
TEST_F(LearnedLightning, CompressedKeysAreTheMeansOfTheirTokens) {
    for (const int64_t count : {4, 5, 16}) {
        const std::string name = "dsa:compress=" + std::to_string(count);
        const Tensor<float, 3> got = scores(name);
        for (int64_t i = 0; i < p_.queries(); ++i)
            for (int64_t b = 0; b < blocks(i); ++b) {
                double top = -HUGE_VAL;
                for (int64_t j = 0; j + count <= position(i) + 1; j += count)
                    if (j / 16 <= b && b <= (j + count - 1) / 16)
                        top = std::max(top, learned(i, j, count));
                if (std::isinf(top))
                    ASSERT_EQ(got(i, 1, b), top) << name << ", " << i;
                else
                    ASSERT_NEAR(got(i, 1, b), top, learned_bound()) << name << ", " << i;
            }
        expect_chunks_do_not_matter(name);
    }
}

/// 52 pieces of 4 in 210 tokens: n of them are seen by 4 queries, 52 by 3; 18 of 75 likewise.
TEST_F(LearnedLightning, CompressedKeysCostLess) {
    const PolicyCost whole = make_policy("dsa")->cost({p_, 0, learned_});
    const PolicyCost cost = make_policy("dsa:compress=4")->cost({p_, 0, learned_});
    const double share = (4 * (51 * 52 / 2) + 3 * 52 + 4 * (18 * 19 / 2)) / (22155.0 + 2850);
    EXPECT_NEAR(cost.flops, whole.flops * share, 1e-6 * cost.flops);
    EXPECT_NEAR(cost.bytes, whole.bytes * share, 1e-6 * cost.bytes);
}

TEST_F(LearnedLightning, KeepsTheHighestTokens) {
    const std::unique_ptr<TokenSelector> selector = find_token_selector("dsa-tokens");
    const SelectorLayer layer = selector_layer();
    selector->prepare(layer);
    const std::vector<int64_t> row{209};
    const Problem one = p_.with_query_rows(row);
    const std::vector<int64_t> kept =
        selector->select(layer, selector_chunk(layer, one, row), std::vector<int64_t>{20})
            .front()
            .front();
    const std::set<int64_t> set(kept.begin(), kept.end());
    EXPECT_EQ(set.size(), 20U);
    double least = HUGE_VAL, most = -HUGE_VAL;
    for (int64_t j = 0; j < 210; ++j)
        (set.contains(j) ? least = std::min(least, learned(209, j))
                         : most = std::max(most, learned(209, j)));
    EXPECT_GE(least, most - learned_bound());
}

TEST_F(LearnedLightning, CostsItsHeads) {
    // 210 * 211 / 2 + 75 * 76 / 2 pairs of a query and a key that it sees.
    const double pairs = 22155 + 2850;
    const PolicyCost cost = make_policy("dsa")->cost({p_, 0, learned_});
    EXPECT_EQ(cost.flops, 2 * 3 * (32 + 1) * pairs);
    EXPECT_EQ(cost.bytes, 2 * 32 * pairs);
}

TEST_F(TokenPolicies, LightningIndexerKeepsTheHighestTokens) {
    const std::unique_ptr<TokenSelector> selector = find_token_selector("dsa-tokens");
    const SelectorLayer layer = selector_layer();
    selector->prepare(layer);
    const std::vector<int64_t> rows{9, 30, 209, 284};
    const Problem some = p_.with_query_rows(rows);
    const SelectorChunk chunk = selector_chunk(layer, some, rows);
    const KeptTokens all = selector->select(layer, chunk, std::vector<int64_t>{20}).front();
    for (size_t n = 0; n < rows.size(); ++n) {
        const int64_t token = rows[n], visible = position(token) + 1;
        const std::vector<int64_t>& kept = all[n];
        const std::set<int64_t> set(kept.begin(), kept.end());
        EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
        EXPECT_EQ(std::ssize(set), std::min<int64_t>(20, visible));
        double least = HUGE_VAL, most = 0;
        for (int64_t j = 0; j < visible; ++j)
            (set.contains(j) ? least = std::min(least, lightning(token, j))
                             : most = std::max(most, lightning(token, j)));
        EXPECT_GE(least, most - bound()) << token;
    }
}

/// NaN is as low as -inf: the budget is spent, and the older of equal tokens stays.
TEST(HighestTokens, AreInOrderWithTiesAndNaN) {
    const auto of = [](std::vector<float> scores, int64_t count) {
        return highest(View<const float, 1>(scores.data(), {std::ssize(scores)}), count);
    };
    using Tokens = std::vector<int64_t>;
    EXPECT_EQ(of({1, 3, 2, 3, 0}, 2), (Tokens{1, 3}));
    EXPECT_EQ(of({3, 3, 3}, 2), (Tokens{0, 1}));
    EXPECT_EQ(of({NAN, 3, NAN, 1}, 2), (Tokens{1, 3}));
    EXPECT_EQ(of({NAN, NAN, NAN, 1}, 2), (Tokens{0, 3}));
    EXPECT_EQ(of({NAN, -INFINITY, 0}, 2), (Tokens{0, 2}));
    EXPECT_EQ(of({0, 1}, 0), Tokens());
    EXPECT_EQ(of({NAN, 1}, 5), (Tokens{0, 1}));
}

TEST(AllButBest, AreInOrderWithTiesAndNaN) {
    const auto of = [](std::vector<double> values, int64_t room) {
        std::vector<int64_t> blocks(values.size());
        std::iota(blocks.begin(), blocks.end(), 0);
        std::vector<int64_t> rest =
            all_but_best(blocks, room, [&](int64_t b) { return values[static_cast<size_t>(b)]; });
        std::sort(rest.begin(), rest.end());
        return rest;
    };
    using Blocks = std::vector<int64_t>;
    EXPECT_EQ(of({1, 3, 2, 3, 0}, 2), (Blocks{0, 2, 4}));
    EXPECT_EQ(of({NAN, 3, NAN, 1}, 2), (Blocks{0, 2}));
    EXPECT_EQ(of({NAN, NAN, NAN, 1}, 2), (Blocks{1, 2}));
    EXPECT_EQ(of({NAN, 1}, 5), Blocks());
}

TEST_F(TokenPolicies, StreamingLlmKeepsFourSinksAndTheNewest) {
    EXPECT_EQ(keep("streaming-llm", 20, 7), (Tokens{0, 1, 2, 3, 17, 18, 19}));
    EXPECT_EQ(keep("streaming-llm", 5, 7), (Tokens{0, 1, 2, 3, 4}));
    EXPECT_EQ(keep("streaming-llm", 8, 7), (Tokens{0, 1, 2, 3, 5, 6, 7}));
    EXPECT_EQ(keep("streaming-llm", 20, 3), (Tokens{17, 18, 19}));
    EXPECT_EQ(keep("streaming-llm", 1, 7), (Tokens{0}));
}

TEST_F(TokenPolicies, WindowEndsAtTheQuery) {
    Tokens want(16);
    std::iota(want.begin(), want.end(), 0);  // the first block, of 16
    for (int64_t j : {96, 97, 98, 99}) want.push_back(j);
    EXPECT_EQ(keep("window-tokens", 100, 20), want);
    EXPECT_EQ(keep("window-tokens", 100, 3), (Tokens{97, 98, 99}));
    EXPECT_EQ(keep("window-tokens", 17, 20).size(), 17U);
}

/// k blocks hold what lies before the query in its own, and all of the others.
TEST(ReadableTokens, AreThoseOfTheBlocks) {
    EXPECT_EQ(readable_tokens(4, 16, 100), 3 * 16 + 4);
    EXPECT_EQ(readable_tokens(4, 16, 96), 4 * 16);
    EXPECT_EQ(readable_tokens(4, 16, 97), 3 * 16 + 1);
    EXPECT_EQ(readable_tokens(4, 16, 50), 50);
    EXPECT_EQ(readable_tokens(4, 16, 0), 0);
}

TEST_F(TokenPolicies, SeveralBudgetsAreEachAsAlone) {
    const SelectorLayer layer = selector_layer();
    const std::vector<int64_t> rows{9, 30, 209, 284}, budgets{20, 3, 40};
    const Problem some = p_.with_query_rows(rows);
    for (const std::string& name : list_token_selectors()) {
        const std::unique_ptr<TokenSelector> selector = find_token_selector(name);
        selector->prepare(layer);
        const SelectorChunk chunk = selector_chunk(layer, some, rows);
        const std::vector<KeptTokens> together = selector->select(layer, chunk, budgets);
        ASSERT_EQ(together.size(), budgets.size());
        for (size_t n = 0; n < budgets.size(); ++n) {
            EXPECT_EQ(together[n],
                      selector->select(layer, chunk, std::span(budgets).subspan(n, 1)).front());
            // All of the budget, but for those that keep several tokens or none of them.
            for (size_t i = 0; i < rows.size(); ++i) {
                const int64_t most = std::min(budgets[n], position(rows[i]) + 1);
                EXPECT_LE(std::ssize(together[n][i]), most) << name;
                EXPECT_GT(std::ssize(together[n][i]), most - (name == "qsa-tokens" ? 4 : 1))
                    << name;
            }
        }
    }
}

TEST_F(TokenPolicies, AreFoundByName) {
    for (const std::string& name : list_token_selectors()) {
        EXPECT_EQ(find_token_selector(name)->name(), name);
        EXPECT_GT(find_token_selector(name)->rule().size(), 20U);
    }
    EXPECT_EQ(find_token_selector("oracle"), nullptr);
}

}  // namespace
}  // namespace msa::test
