// SPDX-License-Identifier: MIT
// Policies of tokens, and the block form of the lightning indexer.
#include <set>

#include "core/select/token_selector.h"
#include "tests/core/select/policy.h"

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
    double bound() const {
        return gamma(16 + 4) * 2 * largest_norm<3>(index_q_) * largest_norm<2>(index_k_);
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

TEST_F(TokenPolicies, LightningIndexerKeepsTheHighestTokens) {
    const std::unique_ptr<TokenSelector> selector = find_token_selector("dsa-tokens");
    const SelectorLayer layer{p_, k_.view(), *backend_, index_k_};
    selector->prepare(layer);
    const std::vector<int64_t> rows{9, 30, 209, 284};
    const Problem some = p_.with_query_rows(rows);
    const Tensor<float, 3> q = rows_of(q_.view(), rows), index_q = rows_of(index_q_.view(), rows);
    const SelectorChunk chunk{some, rows, q.view(), index_q.view(), {}, {}};
    for (size_t n = 0; n < rows.size(); ++n) {
        const int64_t token = rows[n], visible = position(token) + 1;
        const std::vector<int64_t> kept =
            selector->select(chunk, static_cast<int64_t>(n), token < 210 ? 0 : 1, visible, 20);
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

TEST_F(TokenPolicies, StreamingLlmKeepsFourSinksAndTheNewest) {
    const std::unique_ptr<TokenSelector> selector = find_token_selector("streaming-llm");
    const SelectorChunk chunk{p_, {}, q_.view(), {}, {}, {}};
    using Tokens = std::vector<int64_t>;
    EXPECT_EQ(selector->select(chunk, 0, 0, 20, 7), (Tokens{0, 1, 2, 3, 17, 18, 19}));
    EXPECT_EQ(selector->select(chunk, 0, 0, 5, 7), (Tokens{0, 1, 2, 3, 4}));
    EXPECT_EQ(selector->select(chunk, 0, 0, 8, 7), (Tokens{0, 1, 2, 3, 5, 6, 7}));
    EXPECT_EQ(selector->select(chunk, 0, 0, 20, 3), (Tokens{17, 18, 19}));
    EXPECT_EQ(selector->select(chunk, 0, 0, 1, 7), (Tokens{0}));
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
