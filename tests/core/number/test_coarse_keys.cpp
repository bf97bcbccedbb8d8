// SPDX-License-Identifier: MIT
// The int8 copy of index_k: its bounds against scores in double, and what it must not be.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/number/coarse_keys.h"
#include "core/number/operand_scales.h"
#include "core/reference/reference_backend.h"
#include "tests/support/cases.h"
#include "tests/support/hidden_score.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "tests/support/runner.h"

namespace msa::test {
namespace {

/// Calls check(difference, error) for every row and wholly visible block: how far the score of the
/// copies is from that of the operands, a float sum in ascending order, and the bound.
template <typename Check>
void for_each_error(const Problem& p, const Operands& o, const Check& check) {
    const StoredCoarseKeys coarse = store_coarse(p, o.index_k);
    const std::vector<int64_t> starts = block_starts(p), sequence = query_sequences(p);
    const std::vector<KeyRange> visible = visible_keys(p);
    std::vector<Int8> q(static_cast<size_t>(p.index_dim));
    const auto scale = static_cast<float>(p.index_scale());
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const float* const own = &o.index_q(i, r, 0);
            const CoarseRow row = coarse_row(p, {own, q.size()}, q.data());
            const KeyRange seen = visible[static_cast<size_t>(i)];
            const int64_t first = starts[static_cast<size_t>(sequence[static_cast<size_t>(i)])];
            for (int64_t b = 0; (b + 1) * p.block_size <= seen.count; ++b) {
                float want = -HUGE_VALF, largest = -HUGE_VALF;
                for (int64_t j = seen.first + b * p.block_size;
                     j < seen.first + (b + 1) * p.block_size; ++j) {
                    float sum = 0;
                    int product = 0;
                    for (int64_t d = 0; d < p.index_dim; ++d) {
                        sum += own[d] * o.index_k(j, d);
                        product += q[static_cast<size_t>(d)].value * coarse.keys(j, d).value;
                    }
                    want = std::max(want, scale * sum);
                    largest = std::max(largest, static_cast<float>(product));
                }
                const CoarseBlock block = coarse_block(coarse.blocks.data(), first + b);
                const float got = scaled_score(row.scale, block.scale, largest);
                check(std::fabs(double{got} - want), row.error(block.norm, block.error));
            }
        }
}

class CoarseKeysOf : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(All, CoarseKeysOf, testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

TEST_P(CoarseKeysOf, ScoresAreWithinTheirBounds) {
    const Problem& p = GetParam().problem;
    for_each_error(p, make_operands(GetParam(), Element::f32),
                   [](double difference, float error) { EXPECT_LE(difference, error); });
}

/// The blocks that are not candidates are never among the best, ties included: the ids are those of
/// all scores. For blocks of few keys the copy excludes nearly all.
TEST(CoarseKeys, FewBlocksAreCandidates) {
    Problem p = square_problem(512, 2, 2, 16, 64, 8);
    const Operands o = make_operands({"candidates", p, {}}, Element::f32);
    const StoredCoarseKeys coarse = store_coarse(p, o.index_k);
    const SelectionRule rule{.top_k = 8, .forced_first = 1};
    int64_t most = 0;
    for (const auto& row : reference::coarse_candidates(p, rule, o.index_q, coarse.view()))
        most = std::max(most, std::ssize(row));
    EXPECT_GE(most, 6);
    EXPECT_LT(most, 32);  // of 62
}

/// A bound of half the size is too small: the difference may be all of it.
TEST(CoarseKeys, TheirBoundIsReached) {
    const Problem p = hidden_score_problem();
    double largest = 0;
    for_each_error(p, hidden_score(p), [&](double difference, float error) {
        largest = std::max(largest, difference / error);
    });
    EXPECT_LE(largest, 1);
    EXPECT_GT(largest, 0.95);
}

TEST(CoarseKeys, ValuesThatAreNotFiniteExcludeNothing) {
    const float infinity = std::numeric_limits<float>::infinity();
    const Problem p = square_problem(24, 1, 1, 16, 16, 8);
    for (const float value : {std::nanf(""), infinity, -infinity, 3e38F}) {
        Operands o = make_operands({"values", p, {}}, Element::f32);
        o.index_k(9, 5) = value;
        o.index_q(23, 0, 7) = value;
        const StoredCoarseKeys coarse = store_coarse(p, o.index_k);
        EXPECT_EQ(coarse.blocks(1, 1), infinity);
        EXPECT_TRUE(std::isfinite(coarse.blocks(1, 0)));
        EXPECT_TRUE(std::isfinite(coarse.blocks(0, 1)));
        std::vector<Int8> q(16);
        const CoarseRow row = coarse_row(p, {&o.index_q(23, 0, 0), 16}, q.data());
        EXPECT_EQ(row.error(1, 1), infinity);
        EXPECT_EQ(row.error(coarse.blocks(1, 1), coarse.blocks(1, 2)), infinity);
        const auto rows = reference::coarse_candidates(p, {.top_k = 2}, o.index_q, coarse.view());
        EXPECT_EQ(rows[23], (std::vector<int64_t>{0, 1}));
        EXPECT_EQ(rows[22].back(), 1);  // of a block that is not finite, nothing is known
    }
}

TEST(CoarseKeys, MustBeThoseOfIndexK) {
    const Problem p = square_problem(24, 1, 1, 16, 16, 8);
    const Operands o = make_operands({"values", p, {}}, Element::f32);
    StoredCoarseKeys coarse = store_coarse(p, o.index_k);
    const auto refused = [&](const CoarseKeys& given) {
        return refusal([&] { check_coarse_keys(p, given, o.index_k.view()); });
    };
    EXPECT_EQ(refused(coarse.view()), "");
    EXPECT_EQ(refused({}), "");
    EXPECT_EQ(refused({coarse.keys, {}}),
              "blocks of coarse keys have shape [0, 0], must be [blocks of all sequences, 3] = "
              "[3, 3]");
    EXPECT_EQ(refused({{}, coarse.blocks}),
              "blocks of coarse keys are given, but the keys are absent");
    EXPECT_EQ(refused({o.index_k, coarse.blocks}), "coarse keys are f32, must be int8");
    coarse.keys(10, 3).value ^= 64;
    EXPECT_TRUE(
        refused(coarse.view())
            .starts_with("coarse keys are not those of index_k in block 1: token 10 has norm "));
    coarse.keys(10, 3).value ^= 64;
    coarse.blocks(2, 2) /= 2;
    EXPECT_TRUE(refused(coarse.view())
                    .starts_with("coarse keys are not those of index_k in block 2: token "));
    coarse.blocks(2, 0) = 0;
    EXPECT_EQ(refused(coarse.view()),
              "coarse keys have scale 0 in block 2, must be from 2^-40 to 2^40");
}

}  // namespace
}  // namespace msa::test
