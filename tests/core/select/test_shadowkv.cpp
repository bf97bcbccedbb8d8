// SPDX-License-Identifier: MIT
#include <algorithm>
#include <set>

#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class ShadowKv : public Policy {
protected:
    double cosine(int64_t token, int64_t r, int64_t b) const {
        const std::vector<double> mean = mean_key(token, r, b);
        double least = 1;
        for (int64_t j = 16 * b; j < 16 * b + 16; ++j) {
            double dot = 0, of_key = 0, of_mean = 0;
            for (int64_t d = 0; d < 16; ++d) {
                const double key = k_(start(token) + j, r, d), m = mean[static_cast<size_t>(d)];
                dot += key * m;
                of_key += key * key;
                of_mean += m * m;
            }
            least = std::min(least, dot / std::sqrt(of_key * of_mean));
        }
        return least;
    }
    /// The `count` blocks before the token's own with a key least like the mean.
    std::set<int64_t> outliers(int64_t token, int64_t r, int64_t count) const {
        std::vector<std::pair<double, int64_t>> all;
        for (int64_t b = 0; b + 1 < blocks(token); ++b) all.emplace_back(cosine(token, r, b), b);
        std::sort(all.begin(), all.end());
        std::set<int64_t> some;
        for (int64_t n = 0; n < std::min(count, std::ssize(all)); ++n)
            some.insert(all[static_cast<size_t>(n)].second);
        return some;
    }
    double landmark(int64_t token, int64_t h, int64_t b) const {
        const std::vector<double> mean = mean_key(token, h / 2, b);
        double dot = 0;
        for (int64_t d = 0; d < 16; ++d)
            dot += double{q_(token, h, d)} * mean[static_cast<size_t>(d)] / 4;
        return std::exp(dot);
    }
};

TEST_F(ShadowKv, IsTheLargestAttentionToTheLandmarkAndOutliers) {
    for (const auto& [top_k, count] : {std::pair{4, 1}, {6, 1}, {16, 3}}) {
        const auto want = [&, kept = int64_t{count}](int64_t i, int64_t r, int64_t b) {
            if (b + 1 == blocks(i)) return 0.0;  // the local block is forced
            double most = 0;
            for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
                double all = 0;
                for (int64_t other = 0; other + 1 < blocks(i); ++other)
                    all += landmark(i, h, other);
                most = std::max(most, landmark(i, h, b) / all);
            }
            return most + (outliers(i, r, kept).contains(b) ? 2 : 0);
        };
        expect_scores(scores("shadowkv", 0, {.top_k = top_k}), votes_bound(1) + gamma(4), want);
    }
}

TEST_F(ShadowKv, ChunksDoNotMatter) { expect_chunks_do_not_matter("shadowkv"); }

}  // namespace
}  // namespace msa::test
