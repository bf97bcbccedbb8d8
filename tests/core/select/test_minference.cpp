// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "tests/core/select/lines.h"

namespace msa::test {
namespace {

class MInference : public LinesPolicy {
protected:
    /// [Hkv] that the search takes at k = 4, each of which keeps no less on the sample than the
    /// others.
    std::vector<std::string> searched_patterns() const {
        const Tensor<float, 3> got = scores("minference", 0, kRule);
        std::vector<std::string> taken(2);
        for (int64_t r = 0; r < 2; ++r) {
            double most = -1, of_taken = -2;
            for (const char* pattern : {"minference-vs", "window", "minference-bs"}) {
                const Tensor<float, 3> by = scores(pattern, 0, kRule);
                const SelectionRule own = make_selector(pattern)->adjust(kRule, 0);
                const double kept = mass_kept(by, own, r);
                most = std::max(most, kept);
                if (!are_alike(got, by, own, r)) continue;
                EXPECT_EQ(taken[static_cast<size_t>(r)], "") << pattern;
                taken[static_cast<size_t>(r)] = pattern;
                of_taken = kept;
            }
            EXPECT_EQ(of_taken, most) << r;
        }
        return taken;
    }

private:
    static constexpr SelectionRule kRule{.top_k = 4};

    /// On 64 queries, evenly in the later half of the first sequence.
    double mass_kept(const Tensor<float, 3>& by, const SelectionRule& rule, int64_t r) const {
        const Tensor<float, 3> mass = mass_of(p_, q_.view());
        Tensor<int32_t, 3> ids({285, 2, 4});
        backend_->select_blocks(p_, rule, by, ids);
        double sum = 0;
        for (int64_t n = 1; n <= 64; ++n)
            for (int32_t b : selected(ids, 105 + 105 * n / 64 - 1, r))
                sum += double{mass(105 + 105 * n / 64 - 1, r, b)};
        return sum;
    }

    bool are_alike(const Tensor<float, 3>& a, const Tensor<float, 3>& b, const SelectionRule& rule,
                   int64_t r) const {
        for (int64_t i = 0; i < 285; ++i)
            for (int64_t block = rule.forced_first; block < blocks(i); ++block)
                if (a(i, r, block) != b(i, r, block)) return false;
        return true;
    }
};

TEST_F(MInference, VerticalSlashAddsKeysAndDistances) {
    expect_scores(scores("minference-vs"), votes_bound(2 * 2 * 64),
                  [&](int64_t i, int64_t r, int64_t b) { return lines(i, r, b, 64, length(i)); });
}

TEST_F(MInference, VerticalSlashOfDecodeLooksAtThePromptsEnd) {
    expect_scores(
        scores("minference-vs", 70), votes_bound(2 * 2 * 64),
        [&](int64_t i, int64_t r, int64_t b) { return lines(i, r, b, 64, 70); }, 70);
}

TEST_F(MInference, VerticalSlashForcesTheFirstAndTheLocalBlock) {
    const SelectionRule rule = make_selector("minference-vs")->adjust({.top_k = 3}, 0);
    EXPECT_EQ(rule, (SelectionRule{.top_k = 3, .forced_local = 1, .forced_first = 1}));
    EXPECT_EQ(make_selector("minference-vs")->adjust({.top_k = 1}, 0), (SelectionRule{.top_k = 1}));
}

TEST_F(MInference, BlockSparseComparesMeans) {
    const auto want = [&](int64_t i, int64_t r, int64_t b) {
        // Keys behind the query stay out of its own block, which is forced anyway.
        if (b == blocks(i) - 1) return std::nan("");
        const std::vector<double> key = mean_key(i, r, b);
        double sum = 0;
        for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
            const std::vector<double> query = mean_query(i, h, blocks(i) - 1);
            for (size_t d = 0; d < 16; ++d) sum += query[d] * key[d];
        }
        return sum;
    };
    const Tensor<float, 3> got = scores("minference-bs");
    const double bound =
        gamma(2 + 16 + 16 + 16 + 3) * 2 * largest_norm<3>(q_) * largest_norm<3>(k_);
    for (int64_t i = 0; i < 285; ++i)
        for (int64_t r = 0; r < 2; ++r)
            for (int64_t b = 0; b + 1 < blocks(i); ++b)
                ASSERT_NEAR(got(i, r, b), want(i, r, b), bound) << i << ", " << b;
}

/// None of the three patterns has a first block that is always there, as the original's search.
TEST(MInferenceRule, ForcesNoFirstBlock) {
    const SelectionRule rule{.top_k = 4};
    EXPECT_EQ(make_selector("minference")->adjust(rule, 0), rule);
}

/// The pattern that is chosen for a group keeps no less on the sample than the others.
TEST_F(MInference, SearchTakesThePatternThatKeepsMost) { searched_patterns(); }

/// Queries of a block look at one block of keys, another one for each, which neither the last
/// queries nor their distances tell: only the mean of the block's own queries does.
TEST_F(MInference, SearchTakesBlockSparseWhereQueryBlocksHaveTheirOwnKeys) {
    constexpr std::array<int64_t, 8> kLookedAt{3, 1, 5, 2, 7, 4, 8, 6};  // by query blocks 6 to 13
    for (size_t n = 0; n < kLookedAt.size(); ++n) {
        const auto d = static_cast<int64_t>(n);
        for (int64_t j = 16 * kLookedAt[n]; j < 16 * kLookedAt[n] + 16; ++j) k_(j, 1, d) += 3;
        for (int64_t i = 16 * (6 + d); i < std::min(first_, 16 * (7 + d)); ++i)
            for (int64_t h : {2, 3}) {
                for (int64_t c = 0; c < 16; ++c) q_(i, h, c) *= 0.2F;
                q_(i, h, d) += 6;
            }
    }
    EXPECT_EQ(searched_patterns()[1], "minference-bs");
}

TEST_F(MInference, ChunksDoNotMatter) {
    for (const char* name : {"minference-vs", "minference-bs", "minference"})
        expect_chunks_do_not_matter(name);
}

}  // namespace
}  // namespace msa::test
