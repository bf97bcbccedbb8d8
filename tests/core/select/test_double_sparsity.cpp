// SPDX-License-Identifier: MIT
#include <algorithm>
#include <numeric>

#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class DoubleSparsity : public Policy {
protected:
    /// Of head h, the `rank` channels of the largest mean |q k| of a token's own query and key over
    /// the first `tokens` tokens of both sequences, before position `end`.
    std::vector<int64_t> channels(int64_t h, int64_t rank, int64_t tokens) const {
        std::vector<std::pair<double, int64_t>> all;
        for (int64_t d = 0; d < 16; ++d) {
            double sum = 0;
            for (int64_t i = 0; i < 285; ++i)
                if (position(i) < tokens)
                    sum += std::fabs(double{q_(i, h, d)} * double{k_(i, h / 2, d)});
            all.emplace_back(-sum, d);
        }
        std::sort(all.begin(), all.end());
        std::vector<int64_t> best;
        for (int64_t n = 0; n < rank; ++n) best.push_back(all[static_cast<size_t>(n)].second);
        return best;
    }
    /// The source's pseudo_quantize.
    static std::vector<double> quantised(std::vector<double> label, int64_t bits) {
        if (bits == 16) return label;
        const double least = *std::min_element(label.begin(), label.end());
        const double most = *std::max_element(label.begin(), label.end());
        const double scale = (std::pow(2.0, static_cast<double>(bits)) - 1) / (most - least);
        for (double& value : label) value = std::nearbyint((value - least) * scale) / scale + least;
        return label;
    }
    std::vector<double> label(const Tensor<float, 3>& of, int64_t token, int64_t head,
                              const std::vector<int64_t>& which, int64_t bits) const {
        std::vector<double> values;
        for (int64_t d : which) values.push_back(double{of(token, head, d)});
        return quantised(values, bits);
    }

    void expect_rule(const char* name, int64_t rank, int64_t bits, int64_t tokens,
                     int64_t prompt = 0) const {
        Tensor<double, 3> want({285, 2, p_.blocks()});
        for (int64_t h = 0; h < 4; ++h) {
            const std::vector<int64_t> which = channels(h, rank, tokens);
            std::vector<std::vector<double>> keys;
            for (int64_t j = 0; j < 285; ++j) keys.push_back(label(k_, j, h / 2, which, bits));
            for (int64_t i = 0; i < 285; ++i) {
                const std::vector<double> query = label(q_, i, h, which, bits);
                std::vector<double> weights;
                for (int64_t j = 0; j <= position(i); ++j) {
                    const std::vector<double>& key = keys[static_cast<size_t>(start(i) + j)];
                    const double dot =
                        std::inner_product(query.begin(), query.end(), key.begin(), 0.0);
                    weights.push_back(std::exp(dot / std::sqrt(static_cast<double>(rank))));
                }
                const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
                for (int64_t j = 0; j <= position(i); ++j)
                    want(i, h / 2, j / 16) += weights[static_cast<size_t>(j)] / all / 2;
            }
        }
        // A quantised value lies between the least and the largest of its label.
        const double logit = logit_bound(1 / std::sqrt(static_cast<double>(rank)),
                                         2 * largest_norm<3>(q_), 2 * largest_norm<3>(k_), 16);
        expect_scores(
            scores(name, prompt), mass_bound(logit, 210),
            [&](int64_t i, int64_t r, int64_t b) { return want(i, r, b); }, prompt);
    }
};

TEST_F(DoubleSparsity, IsTheAttentionOfTheLabels) {
    expect_rule("double-sparsity", 4, 4, 512);
    expect_rule("double-sparsity:rank=3:bits=16", 3, 16, 512);
    expect_rule("double-sparsity:bits=2:calibration=8", 4, 2, 8);
    expect_rule("double-sparsity:rank=6", 6, 4, 50, 50);  // calibrated on the prompt
}

TEST_F(DoubleSparsity, OfAllChannelsAsTheyAreIsTheOracle) {
    const Tensor<float, 3> want = scores("oracle");
    expect_scores(scores("double-sparsity:rank=16:bits=16"), 2 * votes_bound(1),
                  [&](int64_t i, int64_t r, int64_t b) { return want(i, r, b); });
}

TEST_F(DoubleSparsity, ChunksDoNotMatter) { expect_chunks_do_not_matter("double-sparsity"); }

}  // namespace
}  // namespace msa::test
