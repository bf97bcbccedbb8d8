// SPDX-License-Identifier: MIT
#include <cmath>
#include <limits>

#include "core/tolerance.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

double largest_lse(View<const float, 2> lse) {
    double largest = 0;
    for (int64_t at = 0; at < lse.size(); ++at)
        if (std::isfinite(lse.data()[at]))
            largest = std::max(largest, std::abs(double{lse.data()[at]}));
    return largest;
}

class BlockMassTest : public OperationTest {};
MSA_FOR_ALL_CASES(BlockMassTest);
MSA_FOR_OWN_ATTENTION(BlockMassTest);

TEST_P(BlockMassTest, MatchesReference) {
    EXPECT_TRUE(matches(Runner(subject()).block_mass(problem(), operands_),
                        reference().block_mass(problem(), operands_), bounds(problem(), operands_)))
        << "seed " << seed();
}

TEST_P(BlockMassTest, SumsToOneLessTheSinksWhereAnythingIsSeen) {
    const BlockMass got = Runner(subject()).block_mass(problem(), operands_);
    const Tensor<float, 2> lse = reference().dense_attention(problem(), operands_).lse;
    const int64_t heads = problem().group_size();
    const double rounding = sink_bound(largest_lse(lse));
    const auto of_sinks = [&](int64_t i, int64_t r) {
        double share = 0;
        for (int64_t h = r * heads; h < (r + 1) * heads; ++h)
            if (operands_.sinks.data() != nullptr)
                share += std::exp(double{operands_.sinks(h)} - double{lse(i, h)});
        return share / static_cast<double>(heads);
    };
    const std::vector<KeyRange> visible = visible_keys(problem());
    for (int64_t i = 0; i < problem().queries(); ++i)
        for (int64_t r = 0; r < problem().kv_heads; ++r) {
            double sum = 0;
            for (int64_t b = 0; b < problem().blocks(); ++b) sum += double{got.mass(i, r, b)};
            EXPECT_NEAR(sum, visible[static_cast<size_t>(i)].count > 0 ? 1 - of_sinks(i, r) : 0,
                        bounds(problem(), operands_).mass + rounding);
        }
}

TEST_P(BlockMassTest, ThreadsAndRerunsChangeNoBit) {
    const BlockMass once = Runner(subject(), 1).block_mass(problem(), operands_);
    Runner three(subject(), 3);
    for (int rerun = 0; rerun < 2; ++rerun) {
        const BlockMass again = three.block_mass(problem(), operands_);
        EXPECT_TRUE(identical(again.mass, once.mass));
        EXPECT_TRUE(identical(again.max_logit, once.max_logit));
    }
}

/// Blocks shorter than any other operation takes; of one token, mass is the probability itself.
TEST_P(BlockMassTest, SmallBlocksMatchReference) {
    for (const int64_t block_size : {1, 3}) {
        Problem p = problem();
        p.block_size = block_size;
        EXPECT_TRUE(matches(Runner(subject()).block_mass(p, operands_),
                            reference().block_mass(p, operands_), bounds(p, operands_)))
            << "seed " << seed() << ", block size " << block_size;
    }
}

class BlockMassForms : public SubjectTest {};
MSA_FOR_ALL_SUBJECTS(BlockMassForms);

TEST_P(BlockMassForms, EqualScoresShareByVisibleTokens) {
    const Case c{"equal", square_problem(30, 4, 2, 16, 16, 8), {}, Values::equal};
    const Operands o = make_operands(c, GetParam().element);
    const BlockMass got = Runner(GetParam()).block_mass(c.problem, o);
    const double bound = bounds(c.problem, o).mass;
    // Query 19 sees 20 tokens: 8, 8 and 4 of blocks 0, 1, 2.
    EXPECT_NEAR(got.mass(19, 1, 0), 0.4, bound);
    EXPECT_NEAR(got.mass(19, 1, 2), 0.2, bound);
    EXPECT_EQ(got.mass(19, 1, 3), 0.0F);
    EXPECT_EQ(got.max_logit(19, 1, 2), 1.0F);
    EXPECT_EQ(got.max_logit(19, 1, 3), -std::numeric_limits<float>::infinity());
}

TEST_P(BlockMassForms, IsTheMeanOverTheHeadsOfTheGroup) {
    // Head 0 puts all its probability on block 0, head 1 on block 1: half each.
    const Case c{"heads", square_problem(16, 2, 1, 16, 16, 8), {}, Values::equal};
    Operands o = make_operands(c, GetParam().element);
    std::fill_n(o.q.data(), o.q.size(), 0.0F);
    std::fill_n(o.k.data(), o.k.size(), 0.0F);
    for (int64_t i = 0; i < 16; ++i) {
        o.q(i, 0, 0) = 256;
        o.q(i, 1, 0) = -256;
        o.k(i, 0, 0) = i < 8 ? 1.0F : -1.0F;
    }
    const BlockMass got = Runner(GetParam()).block_mass(c.problem, o);
    EXPECT_NEAR(got.mass(15, 0, 0), 0.5, bounds(c.problem, o).mass);
    EXPECT_NEAR(got.mass(15, 0, 1), 0.5, bounds(c.problem, o).mass);
    EXPECT_EQ(got.max_logit(15, 0, 1), 64.0F);
}

TEST_P(BlockMassForms, FutureNanChangesNothing) {
    const Case c{"nan", square_problem(40, 4, 2, 16, 16, 8), {}};
    Operands o = make_operands(c, GetParam().element);
    Runner runner(GetParam());
    const BlockMass clean = runner.block_mass(c.problem, o);
    o.k(25, 0, 3) = std::nanf("");
    const BlockMass got = runner.block_mass(c.problem, o);
    for (int64_t i = 0; i < 40; ++i)
        for (int64_t r = 0; r < 2; ++r) {
            const bool affected = i >= 25 && r == 0;
            EXPECT_EQ(std::isnan(got.mass(i, r, 0)), affected) << i;
            EXPECT_EQ(std::isnan(got.max_logit(i, r, 3)), affected) << i;
            if (!affected) {
                EXPECT_EQ(got.mass(i, r, 0), clean.mass(i, r, 0));
            }
        }
}

}  // namespace
}  // namespace msa::test
