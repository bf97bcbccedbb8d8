// SPDX-License-Identifier: MIT
#include <algorithm>

#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class Sparq : public Policy {
protected:
    /// The 2 of 16 channels of the largest sum of |q| over the group's heads.
    std::vector<int64_t> channels(int64_t token, int64_t r) const {
        std::vector<std::pair<double, int64_t>> all;
        for (int64_t d = 0; d < 16; ++d)
            all.emplace_back(-std::fabs(q_(token, 2 * r, d)) - std::fabs(q_(token, 2 * r + 1, d)),
                             d);
        std::sort(all.begin(), all.end());
        return {all[0].second, all[1].second};
    }
    /// Logits of one head over the keys that it sees, by the two channels alone.
    std::vector<double> logits(int64_t token, int64_t h) const {
        const std::vector<int64_t> two = channels(token, h / 2);
        double all = 0, some = 0;
        for (int64_t d = 0; d < 16; ++d) all += std::fabs(q_(token, h, d));
        for (int64_t d : two) some += std::fabs(q_(token, h, d));
        std::vector<double> made;
        for (int64_t j = 0; j <= position(token); ++j) {
            double dot = 0;
            for (int64_t d : two)
                dot += double{q_(token, h, d)} * double{k_(start(token) + j, h / 2, d)};
            made.push_back(dot / std::sqrt(16 * some / all));
        }
        return made;
    }
};

TEST_F(Sparq, IsTheAttentionOfTheLargestChannels) {
    const auto want = [&](int64_t i, int64_t r, int64_t b) {
        double mass = 0;
        for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
            double all = 0, block = 0;
            const std::vector<double> of_head = logits(i, h);
            for (int64_t j = 0; j < std::ssize(of_head); ++j) {
                const double weight = std::exp(of_head[static_cast<size_t>(j)]);
                all += weight;
                if (j / 16 == b) block += weight;
            }
            mass += block / all / 2;
        }
        return mass;
    };
    // The temperature makes a query at most sqrt(8) times as long.
    const double logit = logit_bound(p_.softmax_scale(), std::sqrt(8.0) * largest_norm<3>(q_),
                                     largest_norm<3>(k_), p_.head_dim);
    expect_scores(scores("sparq"), mass_bound(logit, 210), want);
}

TEST_F(Sparq, OfAllChannelsIsTheOracle) {
    Tensor<float, 3> one({285, 4, 16});  // all that a query has is in two channels of its group
    for (int64_t i = 0; i < 285; ++i)
        for (int64_t h = 0; h < 4; ++h)
            for (int64_t d : {h / 2, 5 + h / 2}) one(i, h, d) = q_(i, h, d);
    std::copy_n(one.data(), one.size(), q_.data());
    const Tensor<float, 3> want = scores("oracle");
    expect_scores(scores("sparq"), 2 * votes_bound(1),
                  [&](int64_t i, int64_t r, int64_t b) { return want(i, r, b); });
}

TEST_F(Sparq, ChunksDoNotMatter) { expect_chunks_do_not_matter("sparq"); }

}  // namespace
}  // namespace msa::test
