// SPDX-License-Identifier: MIT
// Rows of sparse attention that select nothing, a tile of them, all, or a few: they give nothing,
// get nothing, and leave all else to the others, as if they were not there.
#include <algorithm>
#include <limits>

#include "tests/backends/attention_grad_test.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

constexpr int64_t kRows = 256, kHeads = 16, kDim = 64, kSlots = 4;

/// 256 queries, of which [begin, end) select nothing and the others all that they see.
class EmptyRows : public AttentionGradSubjectTest {
protected:
    Operands operands(bool sinks) const {
        Operands o = make_operands(case_, GetParam().element);
        if (sinks) o.sinks = normal<1>({kHeads}, 12);
        return o;
    }
    Tensor<float, 3> d_out() const { return make_d_out({kRows, kHeads, kDim}, GetParam().element); }
    static Tensor<int32_t, 3> ids_without(const Problem& p, int64_t begin, int64_t end) {
        Tensor<int32_t, 3> ids = all_visible_blocks(p);
        EXPECT_EQ(ids.extent(2), kSlots);
        std::fill_n(&ids(begin, 0, 0), (end - begin) * kSlots, kNoBlock);
        return ids;
    }
    template <typename T>
    static Tensor<T, 3> rows_of(const Tensor<T, 3>& all, const std::vector<int64_t>& rows) {
        const int64_t size = all.extent(1) * all.extent(2);
        Tensor<T, 3> some({std::ssize(rows), all.extent(1), all.extent(2)});
        for (size_t n = 0; n < rows.size(); ++n)
            std::copy_n(&all(rows[n], 0, 0), size, some.data() + static_cast<int64_t>(n) * size);
        return some;
    }

    /// The gradient of the other rows alone, by the reference, and 0 for d_q of the empty ones.
    AttentionGrad of_the_others(int64_t begin, int64_t end, bool sinks) const {
        std::vector<int64_t> rows;
        for (int64_t i = 0; i < kRows; ++i)
            if (i < begin || i >= end) rows.push_back(i);
        const Problem rest = p().with_query_rows(rows);
        Operands o = operands(sinks);
        o.q = rows_of(o.q, rows);
        const Tensor<int32_t, 3> ids = rows_of(ids_without(p(), begin, end), rows);
        const Tensor<float, 3> gradient = rows_of(d_out(), rows);
        const AttentionLoss loss(rest, o, ids.view(), gradient);
        AttentionGrad got =
            reference().sparse_attention_grad(rest, o, ids, {loss.saved(), rows_of(d_out(), rows)});
        Tensor<float, 3> d_q({kRows, kHeads, kDim});
        for (size_t n = 0; n < rows.size(); ++n)
            std::copy_n(got.d_q.data() + static_cast<int64_t>(n) * kHeads * kDim, kHeads * kDim,
                        &d_q(rows[n], 0, 0));
        got.d_q = std::move(d_q);
        return got;
    }

    void expect_forward(int64_t begin, int64_t end, bool sinks) {
        const Operands o = operands(sinks);
        const Tensor<int32_t, 3> ids = ids_without(p(), begin, end);
        for (LoopOrder order : orders_of(runner_, p(), kSlots)) {
            const Attention got = runner_.sparse_attention(p(), o, ids, order);
            for (int64_t i = begin; i < end; ++i)
                for (int64_t h = 0; h < kHeads; ++h) {
                    ASSERT_EQ(got.lse(i, h),
                              sinks ? o.sinks(h) : -std::numeric_limits<float>::infinity())
                        << to_string(order) << ' ' << i;
                    for (int64_t d = 0; d < kDim; ++d) ASSERT_EQ(got.out(i, h, d), 0.0F);
                }
        }
    }

    void expect_gradient(int64_t begin, int64_t end, bool sinks) {
        const Operands o = operands(sinks);
        const Tensor<int32_t, 3> ids = ids_without(p(), begin, end);
        const Tensor<float, 3> gradient = d_out();
        const AttentionLoss loss(p(), o, ids.view(), gradient);
        const AttentionGrad want = of_the_others(begin, end, sinks);
        for (const Way& way : ways(runner_, p(), kSlots)) {
            if (!way.sparse) continue;
            const AttentionGrad got = run(runner_, way, p(), o, ids, {loss.saved(), d_out()});
            EXPECT_TRUE(matches(got, want, loss.sizes())) << way;
            const auto nothing = [](const float* first, int64_t count) {
                return std::all_of(first, first + count, [](float x) { return x == 0; });
            };
            EXPECT_TRUE(nothing(&got.d_q(begin, 0, 0), (end - begin) * kHeads * kDim)) << way;
            if (end - begin < kRows) continue;
            EXPECT_TRUE(nothing(got.d_k.data(), got.d_k.size())) << way;
            EXPECT_TRUE(nothing(got.d_v.data(), got.d_v.size())) << way;
            EXPECT_TRUE(nothing(got.d_sinks.data(), got.d_sinks.size())) << way;
        }
    }

    void expect_nothing_of(int64_t begin, int64_t end) {
        for (const bool sinks : {false, true}) {
            SCOPED_TRACE(sinks ? "sinks" : "no sinks");
            expect_forward(begin, end, sinks);
            expect_gradient(begin, end, sinks);
        }
    }

    const Problem& p() const { return case_.problem; }
    const Case case_{"empty", square_problem(kRows, kHeads, 1, kDim, 16, 64), {.top_k = kSlots}};
};
MSA_FOR_ALL_SUBJECTS(EmptyRows);

TEST_P(EmptyRows, InWholeTiles) { expect_nothing_of(128, 256); }
TEST_P(EmptyRows, Everywhere) { expect_nothing_of(0, 256); }
TEST_P(EmptyRows, InAPartOfATile) { expect_nothing_of(0, 8); }

}  // namespace
}  // namespace msa::test
