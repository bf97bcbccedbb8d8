// SPDX-License-Identifier: MIT
// index_scores and index_select of int8 operands with scales: the same scores and ids on every
// backend, bit for bit.
#include <cmath>
#include <limits>

#include "core/error.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/refusal.h"
#include "tests/support/scaled.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

/// Each backend once: a subject's own type has no part in this.
std::vector<Subject> backends() {
    std::vector<Subject> all = subjects();
    std::erase_if(all, [](const Subject& subject) { return subject.element != Element::f32; });
    return all;
}

/// Scores written out in whole numbers, for operands without NaN.
Tensor<float, 3> exact_scores(const Problem& p, const ScaledIndex& o) {
    Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
    std::fill_n(scores.data(), scores.size(), -std::numeric_limits<float>::infinity());
    const std::vector<KeyRange> visible = visible_keys(p);
    const std::vector<int64_t> block = key_blocks(p);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const KeyRange seen = visible[static_cast<size_t>(i)];
            for (int64_t first = 0; first < seen.count; first += p.block_size) {
                int64_t largest = std::numeric_limits<int64_t>::min();
                for (int64_t j = first; j < std::min(first + p.block_size, seen.count); ++j) {
                    int64_t sum = 0;
                    for (int64_t d = 0; d < p.index_dim; ++d)
                        sum += int64_t{o.q.values(i, r, d).value} *
                               o.k.values(seen.first + j, 0, d).value;
                    largest = std::max(largest, sum);
                }
                const float of_row = static_cast<float>(p.index_scale()) * o.q.scales(i, r);
                const float of_block =
                    o.k.scales(block[static_cast<size_t>(seen.first + first)], 0);
                scores(i, r, first / p.block_size) =
                    of_row * (of_block * static_cast<float>(largest));
            }
        }
    return scores;
}

/// Rows and blocks of very different magnitudes, so that no scale may be left out.
ScaledIndex uneven_index(const Problem& p, Operands& o) {
    for (int64_t i = 0; i < o.index_q.size(); ++i)
        o.index_q.data()[i] *= std::ldexp(1.0F, static_cast<int>(i / p.index_dim % 5));
    const std::vector<int64_t> blocks = key_blocks(p);
    for (int64_t j = 0; j < o.index_k.extent(0); ++j)
        for (int64_t d = 0; d < p.index_dim; ++d)
            o.index_k(j, d) *=
                std::ldexp(1.0F, static_cast<int>(blocks[static_cast<size_t>(j)] * 3 % 4));
    return store_index(p, o);
}

class Int8Index : public OperationTest {
protected:
    void SetUp() override {
        OperationTest::SetUp();
        if (IsSkipped()) return;
        index_ = uneven_index(problem(), operands_);
    }
    ScaledIndex index_;
};
INSTANTIATE_TEST_SUITE_P(All, Int8Index,
                         testing::Combine(testing::ValuesIn(backends()),
                                          testing::ValuesIn(cases())),
                         param_name);

TEST_P(Int8Index, ScoresAreExactInWholeNumbers) {
    Runner runner(subject());
    EXPECT_TRUE(identical(index_scores(runner.backend(), problem(), index_),
                          exact_scores(problem(), index_)))
        << "seed " << seed();
    for (const int64_t block_size : {1, 3}) {
        Problem p = problem();
        p.block_size = block_size;
        const ScaledIndex small = store_index(p, operands_);
        EXPECT_TRUE(identical(index_scores(runner.backend(), p, small), exact_scores(p, small)))
            << "block size " << block_size;
    }
}

TEST_P(Int8Index, ScoresAreThoseOfWhatTheOperandsStandFor) {
    const Operands floats = index_.floats(problem(), operands_);
    Runner runner(subject());
    EXPECT_TRUE(close(index_scores(runner.backend(), problem(), index_),
                      reference().index_scores(problem(), floats),
                      bounds(problem(), floats).scores))
        << "seed " << seed();
}

TEST_P(Int8Index, SelectionIsThatOfTheScores) {
    const Tensor<float, 3> scores = exact_scores(problem(), index_);
    const Tensor<int32_t, 3> want = reference().select_blocks(problem(), rule(), scores);
    Runner runner(subject());
    EXPECT_TRUE(identical(index_select(runner.backend(), problem(), rule(), index_), want))
        << "seed " << seed();
    EXPECT_TRUE(identical(index_select(runner.backend(), problem(), rule(), index_), want));
}

class Int8IndexForms : public SubjectTest {
protected:
    void SetUp() override {
        std::fill_n(o_.index_q.data(), o_.index_q.size(), 0.0F);
        std::fill_n(o_.index_k.data(), o_.index_k.size(), 0.0F);
        o_.index_q(11, 0, 0) = 254;  // scale 2
        o_.index_q(11, 0, 1) = 1;    // a half of it, to the even 0
        o_.index_q(11, 1, 0) = -127;
        for (int64_t j = 0; j < 20; ++j) o_.index_k(j, 0) = static_cast<float>(j % 8);
        o_.index_k(12, 0) = 508;  // scale 4 of block 1; 1, 2 and 3 become 0, 0 and 1
    }
    const Problem p_ = square_problem(20, 2, 2, 16, 16, 8);
    Operands o_ = make_operands({"ramp", p_, {}}, Element::f32);
};
INSTANTIATE_TEST_SUITE_P(All, Int8IndexForms, testing::ValuesIn(backends()), subject_name);

TEST_P(Int8IndexForms, HandMadeNumbers) {
    Runner runner(GetParam());
    const Tensor<float, 3> got = index_scores(runner.backend(), p_, store_index(p_, o_));
    // Query 11 sees tokens 0-11; index_scale is 1/4. Block 0: key 7 is 127 times 7 / 127.
    EXPECT_EQ(got(11, 0, 0), 0.5F * (7 / 127.0F * (127 * 127)));
    EXPECT_EQ(got(11, 0, 1), 0.5F * (4.0F * 127));
    EXPECT_EQ(got(11, 0, 2), -std::numeric_limits<float>::infinity());
    EXPECT_EQ(got(11, 1, 0), 0.0F);
    EXPECT_EQ(got(11, 1, 1), 0.0F);
    EXPECT_EQ(got(12, 0, 1), 0.0F);  // a row of zeros
}

TEST_P(Int8IndexForms, NanIsARowsOrABlocks) {
    o_.index_k(10, 3) = std::nanf("");
    o_.index_q(18, 1, 2) = std::nanf("");
    Runner runner(GetParam());
    const ScaledIndex index = store_index(p_, o_);
    const Tensor<float, 3> got = index_scores(runner.backend(), p_, index);
    for (int64_t i = 0; i < 20; ++i)
        for (int64_t r = 0; r < 2; ++r)
            for (int64_t b = 0; b < 3; ++b) {
                const bool seen = i >= 8 * b, marked = b == 1 || (i == 18 && r == 1);
                EXPECT_EQ(std::isnan(got(i, r, b)), seen && marked) << i << ' ' << r << ' ' << b;
                EXPECT_EQ(std::isinf(got(i, r, b)), !seen) << i << ' ' << r << ' ' << b;
            }
    const Tensor<int32_t, 3> ids = index_select(runner.backend(), p_, {.top_k = 3}, index);
    EXPECT_EQ(ids(17, 0, 0), 0);
    EXPECT_EQ(ids(17, 0, 1), 2);
    EXPECT_EQ(ids(17, 0, 2), kNoBlock);
    EXPECT_EQ(ids(18, 1, 0), 2);  // the local block needs no score
    EXPECT_EQ(ids(18, 1, 1), kNoBlock);
}

TEST_P(Int8IndexForms, OperandsAreChecked) {
    Runner runner(GetParam());
    Backend& backend = runner.backend();
    const Tensor<Int8, 3> q = backend.make<Int8, 3>({20, 2, 16});
    const Tensor<Int8, 2> k = backend.make<Int8, 2>({20, 16});
    const Tensor<float, 3> wide_q = backend.make<float, 3>({20, 2, 16});
    const Tensor<float, 2> wide_k = backend.make<float, 2>({20, 16});
    Tensor<float, 3> scores = backend.make<float, 3>({20, 2, 3});
    Tensor<int32_t, 3> ids = backend.make<int32_t, 3>({20, 2, 1});
    Tensor<float, 2> lse = backend.make<float, 2>({20, 2});
    const auto all = [&](Shape<2> shape, float value = 1) {
        Tensor<float, 2> host(shape);
        std::fill_n(host.data(), host.size(), value);
        return backend.upload(host.view());
    };
    const Tensor<float, 2> one = all({1, 1}), rows = all({20, 2}), blocks = all({3, 1});
    const auto refused = [&](OperandScales scales) {
        return refusal([&] { backend.index_scores(p_, {q, k, scales}, scores); });
    };
    EXPECT_EQ(refused({}), "");
    EXPECT_EQ(refused({rows, blocks, {}}), "");
    EXPECT_EQ(refused({one, one, {}}), "");
    EXPECT_EQ(refused({blocks, {}, {}}),
              "scales of index_q has shape [3, 1], must be [1, 1] or [Nq, Hkv] = [20, 2]");
    EXPECT_EQ(refused({{}, rows, {}}),
              "scales of index_k has shape [20, 2], must be [1, 1] or [blocks of all sequences, 1] "
              "= [3, 1]");
    EXPECT_EQ(refused({one, one, one}),
              "scales of v are given, but the Index Branch has no values");
    EXPECT_EQ(refusal([&] {
                  backend.index_scores(p_, {wide_q, wide_k, {one, {}, {}}}, scores);
              }),
              "scales are given, but index_q is f32, must be int8");
    EXPECT_EQ(refusal([&] {
                  backend.index_select(p_, {.top_k = 1}, {q, k, {}}, ids, lse);
              }),
              "lse is present, but the operands are int8, which index_kl does not take");
    if (backend.space() != Space::host) return;
    EXPECT_EQ(refused({{}, all({1, 1}, 0), {}}),
              "scales of index_k has 0 at 0, must be from 2^-40 to 2^40");
    EXPECT_EQ(refused({all({1, 1}, std::nanf("")), {}, {}}), "");
}

/// Without the scale of its block, the one with the larger whole numbers would win.
TEST_P(Int8IndexForms, BlocksCompareWithTheirScales) {
    std::fill_n(o_.index_k.data(), o_.index_k.size(), 0.0F);
    for (int64_t i = 0; i < 20; ++i) o_.index_q(i, 0, 0) = 1;
    o_.index_k(0, 0) = 1;  // 127 of scale 1 / 127
    o_.index_k(9, 0) = 100;
    o_.index_k(10, 1) = 1000;  // so that the 100 is 13 of scale 1000 / 127
    Runner runner(GetParam());
    const Tensor<int32_t, 3> ids =
        index_select(runner.backend(), p_, {.top_k = 2}, store_index(p_, o_));
    EXPECT_EQ(ids(19, 0, 0), 1);
}

TEST(Int8, TakesTheNearestAndAtATieTheEven) {
    const auto stored = [](float x) { return int{Int8(x).value}; };
    EXPECT_EQ(stored(2.5F), 2);
    EXPECT_EQ(stored(3.5F), 4);
    EXPECT_EQ(stored(-2.5F), -2);
    EXPECT_EQ(stored(126.75F), 127);
    EXPECT_EQ(stored(1e9F), 127);
    EXPECT_EQ(stored(-std::numeric_limits<float>::infinity()), -127);
    EXPECT_EQ(stored(std::nanf("")), 0);
}

TEST(Int8, ScalesShareTheLargestMagnitudeOfTheirUnit) {
    Problem p = square_problem(0, 2, 1, 16, 16, 8);
    p.batch = PackedBatch({0, 9, 13}, {0, 9, 13});  // blocks of 8, 1 and 4 keys
    Tensor<float, 3> k({13, 1, 16});
    k(3, 0, 5) = -254;
    k(7, 0, 1) = 3;
    k(7, 0, 2) = std::numeric_limits<float>::infinity();
    k(8, 0, 0) = 127 * 0x1p-50F;
    k(10, 0, 2) = std::nanf("");
    k(12, 0, 3) = 33;
    const ScaledOperand blocks = store_scaled<Int8>(p, k, OperandScale::block);
    ASSERT_EQ(blocks.scales.shape(), (Shape<2>{3, 1}));
    EXPECT_EQ(blocks.scales(0, 0), 2.0F);
    EXPECT_EQ(blocks.scales(1, 0), kLeastScale);
    EXPECT_TRUE(std::isnan(blocks.scales(2, 0)));
    const Tensor<float, 3> read = read_scaled(p, blocks.values.view(), blocks.scales.view(), true);
    EXPECT_EQ(read(3, 0, 5), -254);
    EXPECT_EQ(read(7, 0, 1), 4);  // 1.5 lies between 1 and 2
    EXPECT_EQ(read(7, 0, 2), 254);
    EXPECT_TRUE(std::isnan(read(12, 0, 3)));
    const ScaledOperand rows = store_scaled<Int8>(p, k, OperandScale::row);
    EXPECT_EQ(rows.scales(0, 0), kLeastScale);  // zeros
    EXPECT_EQ(rows.scales(12, 0), 33 / 127.0F);
    EXPECT_TRUE(std::isnan(rows.scales(10, 0)));
}

}  // namespace
}  // namespace msa::test
