// SPDX-License-Identifier: MIT
#include <algorithm>
#include <numeric>

#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class ExpectedAttention : public Policy {
protected:
    ExpectedAttention() : Policy(0.7F) {}

    /// ln E exp(q . k / 4) of head h, of queries [begin, end) of a sequence: by the mean and the
    /// mean square of (q - mean) . k over the queries.
    double log_expected(int64_t begin, int64_t end, int64_t h, int64_t key, bool spread) const {
        std::vector<double> products;
        for (int64_t i = begin; i < end; ++i) {
            double dot = 0;
            for (int64_t d = 0; d < 16; ++d) dot += double{q_(i, h, d)} * double{k_(key, h / 2, d)};
            products.push_back(dot / 4);
        }
        const auto count = static_cast<double>(products.size());
        const double mean = std::accumulate(products.begin(), products.end(), 0.0) / count;
        double variance = 0;
        for (double x : products) variance += (x - mean) * (x - mean) / count;
        return mean + (spread ? variance / 2 : 0);
    }

    /// Weights of the keys of the token's sequence [token] for the queries before position `end`.
    std::vector<double> weights(int64_t token, int64_t r, int64_t end, int64_t window,
                                int64_t sinks, bool spread, bool values) const {
        const int64_t begin = std::max<int64_t>(0, end - window);
        const int64_t first = start(token) + std::max(begin, std::min(sinks, end - 1));
        std::vector<double> all(static_cast<size_t>(length(token)), 0.0);
        for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
            std::vector<double> terms;
            double sum = 0;
            for (int64_t j = 0; j < length(token); ++j) {
                terms.push_back(
                    std::exp(log_expected(first, start(token) + end, h, start(token) + j, spread)));
                if (j >= sinks && j < end) sum += terms.back();
            }
            for (size_t j = 0; j < all.size(); ++j) all[j] += terms[j] / sum / 2;
        }
        for (int64_t j = 0; values && j < length(token); ++j) {
            double squares = 0;
            for (int64_t d = 0; d < 16; ++d)
                squares += double{v_(start(token) + j, r, d)} * double{v_(start(token) + j, r, d)};
            all[static_cast<size_t>(j)] *= std::sqrt(squares);
        }
        return all;
    }

    void expect_rule(const char* name, int64_t window, int64_t sinks, bool spread, bool values,
                     int64_t prompt = 0) {
        const Tensor<float, 3> got = scores(name, prompt);
        for (int64_t i = 0; i < 285; ++i) {
            if (position(i) < prompt) continue;
            const int64_t end = prompt > 0 ? std::min(prompt, length(i)) : position(i) / 16 * 16;
            std::vector<std::vector<double>> of_groups;
            double most = 0;
            for (int64_t r = 0; r < 2 && end > 0; ++r) {
                of_groups.push_back(weights(i, r, end, window, sinks, spread, values));
                for (int64_t j = sinks; j < end; ++j)
                    most = std::max(most, of_groups.back()[static_cast<size_t>(j)]);
            }
            for (int64_t r = 0; r < 2; ++r)
                for (int64_t b = 0; b < blocks(i); ++b) {
                    double want = 0;
                    for (int64_t j = 16 * b; end > 0 && j <= std::min(16 * b + 15, position(i));
                         ++j)
                        want += j < sinks
                                    ? most
                                    : of_groups[static_cast<size_t>(r)][static_cast<size_t>(j)];
                    // Sums of 210 weights, differences of running sums.
                    ASSERT_NEAR(got(i, r, b), want, 1e-4 * (1 + want)) << name << ", " << i;
                }
        }
    }
};

TEST_F(ExpectedAttention, IsTheAttentionOfNormalQueries) {
    expect_rule("expected-attention:window=32", 32, 4, true, true);
    expect_rule("expected-attention:window=64:sinks=0:values=0", 64, 0, true, false);
    expect_rule("expected-attention:window=50:covariance=0", 50, 4, false, true);
    expect_rule("expected-attention:window=32", 32, 4, true, true, 50);
}

TEST_F(ExpectedAttention, ForcesTheBlockOfTheFirstTokens) {
    EXPECT_EQ(make_selector("expected-attention")->adjust({.top_k = 4}, 0),
              (SelectionRule{.top_k = 4, .forced_local = 1, .forced_first = 1}));
    EXPECT_EQ(make_selector("expected-attention:sinks=0")->adjust({.top_k = 4}, 0),
              (SelectionRule{.top_k = 4}));
}

TEST_F(ExpectedAttention, ChunksDoNotMatter) {
    expect_chunks_do_not_matter("expected-attention:window=32");
    expect_chunks_do_not_matter("expected-attention:window=32", 50);
}

}  // namespace
}  // namespace msa::test
