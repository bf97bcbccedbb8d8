// SPDX-License-Identifier: MIT
#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class InfLlm : public Policy {};

TEST_F(InfLlm, MultipliesWithTheMeanOfTheFourKeysOfMostAttention) {
    const SelectionRule rule{.top_k = 6};  // 33 of 49 blocks forced: 1 first, 3 newest
    ASSERT_EQ(make_selector("infllm")->adjust(rule, 0),
              (SelectionRule{.top_k = 6, .forced_local = 3, .forced_first = 1}));
    const int64_t window = int64_t{3 - 1} * 16;
    std::vector<std::vector<double>> received(2, std::vector<double>(285, 0.0));
    for (int64_t i = 0; i < 285; ++i)
        for (int64_t h = 0; h < 4; ++h) {
            const std::vector<double> weights = attention(i, h);
            for (int64_t j = std::max<int64_t>(0, position(i) + 1 - window); j <= position(i); ++j)
                received[static_cast<size_t>(h / 2)][static_cast<size_t>(start(i) + j)] +=
                    weights[static_cast<size_t>(j)];
        }
    const auto want = [&](int64_t i, int64_t r, int64_t b) {
        std::vector<std::pair<double, int64_t>> tokens;
        for (int64_t j = 16 * b; j < std::min(16 * b + 16, length(i)); ++j)
            tokens.emplace_back(
                -received[static_cast<size_t>(r)][static_cast<size_t>(start(i) + j)], start(i) + j);
        std::sort(tokens.begin(), tokens.end());
        double sum = 0;
        const size_t count = std::min<size_t>(4, tokens.size());
        for (size_t n = 0; n < count; ++n)
            for (int64_t h = 2 * r; h < 2 * r + 2; ++h)
                for (int64_t d = 0; d < 16; ++d)
                    sum += double{q_(i, h, d)} * double{k_(tokens[n].second, r, d)} /
                           static_cast<double>(count);
        return sum;
    };
    const double bound = gamma(2 + 4 + 16 + 3) * 2 * largest_norm<3>(q_) * largest_norm<3>(k_);
    expect_scores(scores("infllm", 0, rule), bound, want);
}

TEST_F(InfLlm, ChunksDoNotMatter) { expect_chunks_do_not_matter("infllm"); }

}  // namespace
}  // namespace msa::test
