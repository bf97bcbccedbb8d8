// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <numeric>

#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class ExpectedAttention : public Policy {
protected:
    ExpectedAttention() : Policy(0.7F) { rope_.frequencies = {1, 0.3, 0.02}; }

    struct Rule {
        int64_t future = 512, sinks = 4;
        bool spread = true, values = true;
        double epsilon = 0;
    };

    /// Mean of q [token, head] over the turns that take it to positions [begin, begin + count).
    std::vector<double> turned(int64_t token, int64_t h, int64_t begin, int64_t count) const {
        std::vector<double> q(16);
        for (int64_t d = 0; d < 16; ++d) q[static_cast<size_t>(d)] = double{q_(token, h, d)};
        std::vector<double> mean = q;
        const auto pairs = static_cast<int64_t>(rope_.frequencies.size());
        for (int64_t c = 0; c < pairs; ++c) {
            const auto low = static_cast<size_t>(rope_.interleaved ? 2 * c : c);
            const auto high = static_cast<size_t>(rope_.interleaved ? 2 * c + 1 : c + pairs);
            mean[low] = mean[high] = 0;
            for (int64_t t = begin; t < begin + count; ++t) {
                const double angle = static_cast<double>(t - position(token)) *
                                     rope_.frequencies[static_cast<size_t>(c)];
                const double cosine = std::cos(angle), sine = std::sin(angle);
                mean[low] += (q[low] * cosine - q[high] * sine) / static_cast<double>(count);
                mean[high] += (q[high] * cosine + q[low] * sine) / static_cast<double>(count);
            }
        }
        return mean;
    }

    /// ln E exp(q . k / 4) of head h, of queries [begin, end) turned to the `future` positions
    /// behind them: by the mean and the mean square of (q - mean) . k over the queries.
    double log_expected(const std::vector<std::vector<double>>& queries, int64_t h, int64_t key,
                        bool spread) const {
        std::vector<double> products;
        for (const std::vector<double>& q : queries) {
            double dot = 0;
            for (int64_t d = 0; d < 16; ++d)
                dot += q[static_cast<size_t>(d)] * double{k_(key, h / 2, d)};
            products.push_back(dot / 4);
        }
        const auto count = static_cast<double>(products.size());
        const double mean = std::accumulate(products.begin(), products.end(), 0.0) / count;
        double variance = 0;
        for (double x : products) variance += (x - mean) * (x - mean) / count;
        return mean + (spread ? variance / 2 : 0);
    }

    /// Weights of the keys of the token's sequence [token] for the queries before position `end`.
    std::vector<double> weights(int64_t token, int64_t r, int64_t end, const Rule& rule) const {
        const auto& [future, sinks, spread, values, epsilon] = rule;
        std::vector<double> all(static_cast<size_t>(length(token)), 0.0);
        for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
            std::vector<std::vector<double>> queries;
            for (int64_t i = sinks; i < end; ++i)
                queries.push_back(turned(start(token) + i, h, end, future));
            std::vector<double> terms;
            double sum = 0;
            for (int64_t j = 0; j < length(token); ++j) {
                terms.push_back(std::exp(log_expected(queries, h, start(token) + j, spread)));
                if (j >= sinks && j < end) sum += terms.back();
            }
            for (size_t j = 0; j < all.size(); ++j) all[j] += terms[j] / sum / 2;
        }
        for (int64_t j = 0; values && j < length(token); ++j) {
            double squares = 0;
            for (int64_t d = 0; d < 16; ++d)
                squares += double{v_(start(token) + j, r, d)} * double{v_(start(token) + j, r, d)};
            all[static_cast<size_t>(j)] =
                (all[static_cast<size_t>(j)] + epsilon) * std::sqrt(squares);
        }
        return all;
    }

    void expect_rule(const char* name, const Rule& rule, int64_t prompt = 0) {
        const Tensor<float, 3> got = scores(name, prompt);
        std::array<int64_t, 2> last{};  // the sequence and `end` of:
        std::vector<std::vector<double>> of_groups;
        double most = 0;
        for (int64_t i = 0; i < 285; ++i) {
            if (position(i) < prompt) continue;
            const int64_t end = prompt > 0 ? std::min(prompt, length(i)) : position(i) / 16 * 16;
            if (end > 0 && last != std::array{start(i), end}) {
                last = {start(i), end};
                of_groups.clear();
                most = 0;
                for (int64_t r = 0; r < 2; ++r) {
                    of_groups.push_back(weights(i, r, end, rule));
                    for (int64_t j = rule.sinks; j < end; ++j)
                        most = std::max(most, of_groups.back()[static_cast<size_t>(j)]);
                }
            }
            for (int64_t r = 0; r < 2; ++r)
                for (int64_t b = 0; b < blocks(i); ++b) {
                    double want = 0;
                    for (int64_t j = 16 * b; end > 0 && j <= std::min(16 * b + 15, position(i));
                         ++j)
                        want += j < rule.sinks
                                    ? most
                                    : of_groups[static_cast<size_t>(r)][static_cast<size_t>(j)];
                    // Sums of 210 weights, differences of running sums.
                    ASSERT_NEAR(got(i, r, b), want, 1e-4 * (1 + want)) << name << ", " << i;
                }
        }
    }
};

TEST_F(ExpectedAttention, IsTheAttentionOfNormalQueries) {
    expect_rule("expected-attention:future=20", {.future = 20});
    expect_rule("expected-attention:future=1:sinks=0:values=0",
                {.future = 1, .sinks = 0, .values = false});
    expect_rule("expected-attention:future=50:covariance=0:epsilon=0.5",
                {.future = 50, .spread = false, .epsilon = 0.5});
    expect_rule("expected-attention:future=20", {.future = 20}, 50);
}

TEST_F(ExpectedAttention, PairsOfChannelsStandWhereTheModelHasThem) {
    rope_.interleaved = true;
    expect_rule("expected-attention:future=20", {.future = 20});
}

/// Without RoPE there is nothing to turn, whatever the positions.
TEST_F(ExpectedAttention, WithoutRopeTheQueriesStayAsTheyAre) {
    rope_ = {};
    expect_rule("expected-attention:future=20", {.future = 1});
}

TEST_F(ExpectedAttention, ForcesTheBlockOfTheFirstTokens) {
    EXPECT_EQ(make_selector("expected-attention")->adjust({.top_k = 4}, 0),
              (SelectionRule{.top_k = 4, .forced_local = 1, .forced_first = 1}));
    EXPECT_EQ(make_selector("expected-attention:sinks=0")->adjust({.top_k = 4}, 0),
              (SelectionRule{.top_k = 4}));
}

TEST_F(ExpectedAttention, ChunksDoNotMatter) {
    expect_chunks_do_not_matter("expected-attention:future=20");
    expect_chunks_do_not_matter("expected-attention:future=20", 50);
}

}  // namespace
}  // namespace msa::test
