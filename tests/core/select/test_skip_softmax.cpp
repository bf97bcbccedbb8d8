// SPDX-License-Identifier: MIT
#include "core/error.h"
#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class SkipSoftmax : public Policy {
protected:
    /// [block]: the source's criterion in doubles, block maximum minus running maximum of one row.
    /// The first block has nothing before it.
    std::vector<double> gaps_of_row(int64_t token, int64_t h) const {
        std::vector<double> gaps;
        double running = -HUGE_VAL;
        for (int64_t b = 0; b < blocks(token); ++b) {
            double top = -HUGE_VAL;
            for (int64_t j = 16 * b; j < std::min(16 * b + 16, position(token) + 1); ++j) {
                double dot = 0;
                for (int64_t d = 0; d < 16; ++d)
                    dot += double{q_(token, h, d)} * double{k_(start(token) + j, h / 2, d)};
                top = std::max(top, dot / 4);
            }
            gaps.push_back(top - running);
            running = std::max(running, top);
        }
        return gaps;
    }
    /// The highest of the group's heads and of the queries [begin, end).
    std::vector<double> gaps(int64_t begin, int64_t end, int64_t r) const {
        std::vector<double> most(static_cast<size_t>(blocks(end - 1)), -HUGE_VAL);
        for (int64_t i = begin; i < end; ++i)
            for (int64_t h = 2 * r; h < 2 * r + 2; ++h) {
                const std::vector<double> row = gaps_of_row(i, h);
                for (size_t b = 0; b < row.size(); ++b) most[b] = std::max(most[b], row[b]);
            }
        return most;
    }
    double logit_error() const {
        return 2 * logit_bound(p_.softmax_scale(), largest_norm<3>(q_), largest_norm<3>(k_), 16);
    }
    int64_t kept(const Tensor<float, 3>& got, int64_t i) const {
        int64_t count = 0;
        for (int64_t r = 0; r < 2; ++r)
            for (int64_t b = 0; b < blocks(i); ++b) count += got(i, r, b) > -INFINITY;
        return count;
    }
    int64_t visible(int64_t i) const { return 2 * blocks(i); }

    /// Blocks are kept as lambda = scale / context(token) says of the tile [begin, end) of a token.
    template <typename Context, typename Tile>
    void expect_rule(const Tensor<float, 3>& got, double scale, int64_t prompt, Context context,
                     Tile tile) const {
        int64_t skipped = 0, later_kept = 0;
        for (int64_t i = 0; i < 285; ++i)
            for (int64_t r = 0; position(i) >= prompt && r < 2; ++r) {
                const auto [begin, end] = tile(i);
                const std::vector<double> want = gaps(begin, end, r);
                const double least = std::log(scale / static_cast<double>(context(i)));
                for (int64_t b = 0; b < blocks(i); ++b) {
                    const double gap = want[static_cast<size_t>(b)];
                    const bool in = got(i, r, b) > -INFINITY;
                    if (b + 1 == blocks(i)) {
                        ASSERT_TRUE(in) << "the own block";
                    } else if (b == 0) {
                        ASSERT_TRUE(in) << "nothing is before the first block";
                    } else if (std::fabs(gap - least) > logit_error()) {
                        ASSERT_EQ(in, gap > least) << "token " << i << ", block " << b;
                    }
                    if (in && b > 0) {
                        ASSERT_NEAR(got(i, r, b), gap, logit_error());
                    }
                    skipped += !in;
                    later_kept += in && b > 0;
                }
            }
        EXPECT_GT(skipped, 100);
        EXPECT_GT(later_kept, 100);
    }
};

TEST_F(SkipSoftmax, SkipsWhatLiesFarBelowTheRunningMaximum) {
    const auto alone = [](int64_t i) { return std::pair(i, i + 1); };
    for (const double scale : {100., 180., 400.})
        expect_rule(
            scores(concat("skip-softmax:scale=", scale)), scale, 0,
            [this](int64_t i) { return length(i); }, alone);
    expect_rule(
        scores("blasst:scale=90", 30), 90, 30, [this](int64_t i) { return position(i) + 1; },
        alone);
}

TEST_F(SkipSoftmax, ATileSkipsWhatNoneOfItsQueriesNeeds) {
    const auto tile = [this](int64_t i) {
        const int64_t begin = start(i) + position(i) / 8 * 8;
        return std::pair(begin, std::min(begin + 8, start(i) + length(i)));
    };
    expect_rule(
        scores("skip-softmax:scale=400:tile=8"), 400, 0, [this](int64_t i) { return length(i); },
        tile);
    const Tensor<float, 3> one = scores("skip-softmax:scale=400", 40),
                           decode = scores("skip-softmax:scale=400:tile=8", 40);
    for (int64_t i = 40; i < 210; ++i)
        ASSERT_EQ(kept(one, i), kept(decode, i)) << "tokens of a decode come one by one";
}

TEST_F(SkipSoftmax, NoThresholdKeepsAllAndAVeryLargeOneTheFirstAndTheOwnBlock) {
    const Tensor<float, 3> all = scores("skip-softmax:scale=1e-200"),
                           ends = scores("skip-softmax:scale=1e15");
    for (int64_t i = 0; i < 285; ++i) {
        ASSERT_EQ(kept(all, i), visible(i));
        ASSERT_EQ(kept(ends, i), 2 * std::min<int64_t>(2, blocks(i)));
        for (int64_t r = 0; r < 2; ++r) ASSERT_GT(ends(i, r, 0), -INFINITY);
    }
}

/// At lambda = 1 a block is kept that comes up to those before.
TEST_F(SkipSoftmax, EqualLogitsAndNaNsAreKept) {
    std::fill_n(k_.data(), k_.size(), 0.0F);
    const Tensor<float, 3> ties = scores("skip-softmax:scale=75");
    for (int64_t i = 210; i < 285; ++i) ASSERT_EQ(kept(ties, i), visible(i));
    // Block 1 has the largest keys. Block 3 has a NaN, and block 4 is judged by block 1 all the
    // same.
    for (int64_t j = 16; j < 32; ++j) k_(210 + j, 0, 0) = 40;
    for (int64_t i = 0; i < 285; ++i)
        for (int64_t h = 0; h < 2; ++h) q_(i, h, 0) = 1;
    const auto kept_of = [&](int64_t i, int64_t b) {
        return scores("skip-softmax:scale=75")(210 + i, 0, b) > -INFINITY;
    };
    for (int64_t b = 0; b < 4; ++b) EXPECT_EQ(kept_of(74, b), b < 2) << b;
    k_(210 + 50, 0, 3) = NAN;
    for (int64_t b = 0; b < 4; ++b) EXPECT_EQ(kept_of(74, b), b != 2) << b;
    EXPECT_FALSE(kept_of(65, 2));
}

/// The budget of all groups together, within 1 %, and the wanted share within 0.002.
TEST_F(SkipSoftmax, CalibrationHitsTheBudgetAndTheWantedShare) {
    for (int64_t i = 64; i < 210; ++i) counted_.push_back(i);  // beyond 4 blocks
    const auto of = [&](const char* name, auto count) {
        const Tensor<float, 3> got = scores(name);
        int64_t sum = 0;
        for (int64_t i : counted_) sum += count(got, i);
        return static_cast<double>(sum);
    };
    const auto kept_of = [this](const Tensor<float, 3>& got, int64_t i) { return kept(got, i); };
    const double budget = 8 * static_cast<double>(counted_.size());
    for (const char* name : {"skip-softmax", "skip-softmax:tile=4"}) {
        EXPECT_LE(of(name, kept_of), budget) << name;
        EXPECT_GE(of(name, kept_of), 0.99 * budget) << name;
    }
    counted_.clear();
    for (int64_t i = 0; i < 285; ++i) counted_.push_back(i);
    const double seen = of("skip-softmax", [this](auto&, int64_t i) { return visible(i); });
    for (const auto& [name, share] :
         {std::pair("skip-softmax:sparsity=0.25", 0.25), {"skip-softmax:sparsity=0.5", 0.5}}) {
        EXPECT_GE(1 - of(name, kept_of) / seen, share) << name;
        EXPECT_LE(1 - of(name, kept_of) / seen, share + 0.002) << name;
    }
}

TEST_F(SkipSoftmax, OneThresholdServesAllGroups) {
    for (int64_t n = 0; n < 285; ++n)  // group 1 looks at all keys alike
        for (int64_t h = 2; h < 4; ++h)
            for (int64_t d = 0; d < 16; ++d) q_(n, h, d) *= 0.01F;
    const Tensor<float, 3> got = scores("skip-softmax:sparsity=0.25");
    std::array<int64_t, 2> count{};
    for (int64_t i = 0; i < 285; ++i)
        for (int64_t r = 0; r < 2; ++r)
            for (int64_t b = 0; b < blocks(i); ++b)
                count[static_cast<size_t>(r)] += got(i, r, b) > -INFINITY;
    EXPECT_GT(count[1], count[0] + 200);
}

TEST_F(SkipSoftmax, CostsAllProductsWithKeysAndSpendsUnevenly) {
    const std::unique_ptr<Selector> selector = make_selector("blasst");
    EXPECT_EQ(selector->name(), "skip-softmax");
    EXPECT_EQ(selector->adjust({.top_k = 4}, 0).top_k, kUneven);
    const double pairs = 210 * 211 / 2.0 + 75 * 76 / 2.0;
    const PolicyCost cost = selector->cost({p_, 0});
    EXPECT_EQ(cost.flops, 2 * 4 * 16 * pairs);
    EXPECT_EQ(cost.bytes, 2 * 2 * 16 * pairs);
    expect_chunks_do_not_matter("skip-softmax");
    expect_chunks_do_not_matter("skip-softmax:tile=32");
    expect_chunks_do_not_matter("skip-softmax", 30);
    // No budget of one block pays for a second.
    const Tensor<float, 3> one = scores("skip-softmax", 0, {.top_k = 1});
    for (int64_t i = 0; i < 285; ++i) ASSERT_EQ(kept(one, i), 2);
    const std::unique_ptr<Selector> both = make_selector("skip-softmax:scale=1:sparsity=0.5");
    EXPECT_THROW(both->prepare(selector_layer()), InputError);
}

}  // namespace
}  // namespace msa::test
