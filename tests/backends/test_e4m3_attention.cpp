// SPDX-License-Identifier: MIT
// sparse_attention of e4m3 operands and their scales.
#include <cmath>
#include <limits>
#include <tuple>

#include "core/e4m3_tolerance.h"
#include "core/error.h"
#include "core/number/half.h"
#include "tests/support/compare.h"
#include "tests/support/refusal.h"
#include "tests/support/scaled.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

/// Magnitudes that differ from block to block and from row to row, so that a scale of another one
/// would be seen.
Operands uneven_operands(const Case& c) {
    Operands o = make_operands(c, Element::f32);
    const auto stretch = [](Tensor<float, 3>& rows, int64_t every, float by) {
        for (int64_t t = 0; t < rows.extent(0); ++t)
            for (int64_t h = 0; h < rows.extent(1); ++h)
                for (int64_t d = 0; d < rows.extent(2); ++d)
                    rows(t, h, d) *= std::pow(by, static_cast<float>((t / every + h) % 3));
    };
    stretch(o.q, 1, 0.5F);
    stretch(o.k, c.problem.block_size, 0.7F);
    stretch(o.v, c.problem.block_size, 3);
    return o;
}

class E4m3Attention : public OperationTest {
protected:
    void SetUp() override {
        OperationTest::SetUp();
        if (the_case().sinks) GTEST_SKIP() << "sinks are added to the same output in bf16";
        ids_ = reference().index_select(problem(), rule(), operands_);
    }
    Tensor<int32_t, 3> ids_;
};
MSA_FOR_ALL_CASES(E4m3Attention);

TEST(E4m3Operand, StandsForItsValues) {
    for (const Case& c : cases()) {
        const Operands o = uneven_operands(c);
        for (bool tensor : {false, true}) {
            const ScaledOperands stored = store_scaled(c.problem, o, tensor);
            const Operands read = stored.floats(c.problem);
            for (const auto& [from, got, scales] : {std::tuple{&o.q, &read.q, &stored.q.scales},
                                                    {&o.k, &read.k, &stored.k.scales},
                                                    {&o.v, &read.v, &stored.v.scales}}) {
                float most = 0;
                for (int64_t i = 0; i < scales->size(); ++i)
                    most = std::max(most, scales->data()[i]);
                for (int64_t i = 0; i < from->size(); ++i)
                    ASSERT_NEAR(got->data()[i], from->data()[i],
                                0x1p-4 * std::fabs(from->data()[i]) + 0x1p-10 * most)
                        << c.name;
            }
        }
    }
}

TEST_P(E4m3Attention, IsThatOfWhatTheOperandsStandFor) {
    Runner runner(subject());
    Backend& backend = runner.backend();
    for (bool tensor : {false, true}) {
        const ScaledOperands o = store_scaled(problem(), uneven_operands(the_case()), tensor);
        const Operands floats = o.floats(problem());
        const Attention want = reference().sparse_attention(problem(), floats, ids_);
        for (LoopOrder order : orders_of(
                 backend, problem(),
                 {.element = Element::e4m3, .top_k = rule().top_k, .out = subject().stored})) {
            const auto run = [&] {
                return sparse_attention(backend, problem(), o, ids_, order, subject().stored);
            };
            const Attention got = run();
            EXPECT_TRUE(
                matches(got, want, e4m3_bounds(problem(), floats, backend, subject().stored)))
                << to_string(order) << ", one scale each: " << tensor << ", "
                << backend.answered_by();
            if (backend.space() == Space::device) {
                EXPECT_TRUE(identical(run().out, got.out)) << to_string(order);
            }
        }
    }
}

class E4m3Operands : public SubjectTest {
protected:
    Problem problem_ = square_problem(20, 4, 2, 16, 16, 8);
};
MSA_FOR_ALL_SUBJECTS(E4m3Operands);

TEST_P(E4m3Operands, ScalesAreChecked) {
    Runner runner(GetParam());
    Backend& backend = runner.backend();
    const Tensor<e4m3, 3> q = backend.make<e4m3, 3>({20, 4, 16}),
                          k = backend.make<e4m3, 3>({20, 2, 16});
    const Tensor<float, 3> wide_q = backend.make<float, 3>({20, 4, 16}),
                           wide_k = backend.make<float, 3>({20, 2, 16});
    const Tensor<int32_t, 3> ids = backend.make<int32_t, 3>({20, 2, 1});  // block 0
    Tensor<float, 3> out = backend.make<float, 3>({20, 4, 16});
    Tensor<f16, 3> half_out = backend.make<f16, 3>({20, 4, 16});
    Tensor<float, 2> lse = backend.make<float, 2>({20, 4});
    const auto ones = [&](Shape<2> shape, float value = 1) {
        Tensor<float, 2> host(shape);
        std::fill_n(host.data(), host.size(), value);
        return backend.upload(host.view());
    };
    const Tensor<float, 2> one = ones({1, 1}), rows = ones({20, 4}), blocks = ones({3, 2});
    const auto refused = [&](OperandScales scales) {
        return refusal([&] {
            backend.sparse_attention(problem_, {q, k, k, {}, scales}, ids, {out, lse});
        });
    };
    EXPECT_EQ(refused({rows, blocks, one}), "");
    EXPECT_EQ(refused({blocks, {}, {}}),
              "scales of q has shape [3, 2], must be [1, 1] or [Nq, Hq] = [20, 4]");
    EXPECT_EQ(refused({{}, {}, rows}),
              "scales of v has shape [20, 4], must be [1, 1] or [blocks of all sequences, Hkv] = "
              "[3, 2]");
    EXPECT_EQ(refusal([&] {
                  backend.sparse_attention(problem_, {wide_q, wide_k, wide_k, {}, {one, {}, {}}},
                                           ids, {out, lse});
              }),
              "scales are given, but q is f32, must be e4m3");
    EXPECT_EQ(refusal([&] {
                  backend.sparse_attention(problem_, {q, k, k}, ids, {half_out, lse});
              }),
              "out is f16, must be f32 or bf16");
    if (backend.space() != Space::host) return;
    EXPECT_EQ(refused({one, ones({1, 1}, 0), one}),
              "scales of k has 0 at 0, must be from 2^-40 to 2^40");
    EXPECT_EQ(refused({one, one, ones({1, 1}, std::nanf(""))}),
              "scales of v has nan at 0, must be from 2^-40 to 2^40");
    EXPECT_THROW(backend.dense_attention(problem_, {q, k, k}, {out, lse}), UnsupportedError);
}

TEST(E4m3Scales, ShareTheLargestMagnitudeOfTheirUnit) {
    Problem p = square_problem(0, 2, 1, 16, 16, 8);
    p.batch = PackedBatch({0, 9, 13}, {0, 9, 13});  // blocks of 8, 1 and 4 keys
    Tensor<float, 3> k({13, 1, 16});
    k(3, 0, 5) = -896;
    k(7, 0, 1) = 2;
    k(8, 0, 0) = 448 * 0x1p-50F;
    k(10, 0, 2) = std::nanf("");
    k(12, 0, 3) = 33;
    k(12, 0, 4) = 56;
    const ScaledOperand blocks = store_scaled<e4m3>(p, k, OperandScale::block);
    ASSERT_EQ(blocks.scales.shape(), (Shape<2>{3, 1}));
    EXPECT_EQ(blocks.scales(0, 0), 2.0F);
    EXPECT_EQ(blocks.scales(1, 0), kLeastScale);
    EXPECT_EQ(blocks.scales(2, 0), 0.125F);
    const Tensor<float, 3> read = read_scaled(p, blocks.values.view(), blocks.scales.view(), true);
    EXPECT_EQ(read(3, 0, 5), -896);
    EXPECT_EQ(read(7, 0, 1), 2);
    EXPECT_EQ(read(12, 0, 3), 32);  // 264 lies between 256 and 288, nearer to the former
    EXPECT_EQ(read(12, 0, 4), 56);
    EXPECT_TRUE(std::isnan(read(10, 0, 2)));
    EXPECT_EQ(store_scaled<e4m3>(p, k, OperandScale::tensor).scales(0, 0), 2.0F);
    const ScaledOperand rows = store_scaled<e4m3>(p, k, OperandScale::row);
    ASSERT_EQ(rows.scales.shape(), (Shape<2>{13, 1}));
    EXPECT_EQ(rows.scales(7, 0), 2 / 448.0F);
    EXPECT_EQ(rows.scales(0, 0), kLeastScale);  // zeros
    EXPECT_EQ(key_blocks(p), (std::vector<int64_t>{0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 2, 2, 2}));
}

/// A bound above the mean would let outputs of zeros pass.
TEST(E4m3Bound, IsFarBelowTheMeanAtTheLongestSelection) {
    const double keys = 32 * 128, mean = 1, v_max = 1;
    const double bound = e4m3_attention_bound(0, keys, mean, v_max, 128, Element::bf16);
    EXPECT_LT(bound, 0.125 * mean);
    EXPECT_GT(bound, storage_roundoff(Element::e4m3) * mean);
}

}  // namespace
}  // namespace msa::test
