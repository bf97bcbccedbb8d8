// SPDX-License-Identifier: MIT
// sparse_attention for every number of query heads to a group: tiles that it does not fill, slots
// of several queries side by side. Sizes that the kernels tuned for one GPU generation answer.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/number/convert.h"
#include "tests/support/compare.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

constexpr int64_t kMostHeads = 64;  // of a group, in tiles

/// bf16 and f16 where the backend takes them.
std::vector<Subject> group_subjects() {
    std::vector<Subject> all;
    for (Subject s : subjects()) {
        s.stored = s.element;
        if (s.backend == "cpu" || s.stored != Element::f32) all.push_back(s);
    }
    return all;
}

std::vector<Subject> gpu_subjects() {
    std::vector<Subject> all = group_subjects();
    std::erase_if(all, [](const Subject& s) { return s.backend == "cpu"; });
    return all;
}

/// Compares with the reference in every loop order.
class GroupSizes : public OperationTest {
protected:
    void SetUp() override {
        OperationTest::SetUp();
        ids_ = reference().index_select(problem(), rule(), operands_);
    }

    void expect(const Operands& o, const Attention& want, const std::string& what = "") {
        expect(problem(), o, ids_, want, what);
    }
    Bounds bounds_of(const Operands& o) const {
        return subject().stored != Element::f32 ? half_bounds(problem(), o) : bounds(problem(), o);
    }
    void expect(const Problem& p, const Operands& o, const Tensor<int32_t, 3>& ids,
                const Attention& want, const std::string& what) {
        // The bounds of finite operands: these may hold NaN.
        expect(p, o, ids, want, what, bounds_of(operands_));
    }
    void expect(const Problem& p, const Operands& o, const Tensor<int32_t, 3>& ids,
                const Attention& want, const std::string& what, const Bounds& b) {
        runner_.index_select(problem(), rule(), operands_);
        const std::string by = runner_.backend().answered_by();
        const bool tuned = by == "index_select_sm90" || by == "index_select_sm80";
        for (LoopOrder order : orders_of(runner_, p, ids.extent(2))) {
            const Attention got = runner_.sparse_attention(p, o, ids, order);
            if (tuned && order != LoopOrder::q_outer &&
                (p.group_size() <= kMostHeads || order == LoopOrder::automatic)) {
                EXPECT_EQ(runner_.backend().answered_by(),
                          "sparse_attention" + by.substr(by.rfind('_')))
                    << what;
            }
            EXPECT_TRUE(matches(got, want, b)) << to_string(order) << ' ' << what;
        }
    }

    Runner runner_{subject()};
    Tensor<int32_t, 3> ids_;
};
INSTANTIATE_TEST_SUITE_P(Tuned, GroupSizes,
                         testing::Combine(testing::ValuesIn(group_subjects()),
                                          testing::ValuesIn(cases(kGroupSizes))),
                         param_name);
INSTANTIATE_TEST_SUITE_P(ManyTiles, GroupSizes,
                         testing::Combine(testing::ValuesIn(gpu_subjects()),
                                          testing::ValuesIn(cases(kManyTiles))),
                         param_name);

TEST_P(GroupSizes, MatchReferenceInEveryOrder) {
    expect(operands_, reference().sparse_attention(problem(), operands_, ids_));
}

TEST_P(GroupSizes, RerunsChangeNoBit) {
    for (LoopOrder order : orders_of(runner_, problem(), rule().top_k)) {
        const Attention once = runner_.sparse_attention(problem(), operands_, ids_, order);
        const Attention again = runner_.sparse_attention(problem(), operands_, ids_, order);
        EXPECT_TRUE(identical(again.out, once.out)) << to_string(order);
        EXPECT_TRUE(identical(again.lse, once.lse)) << to_string(order);
    }
}

TEST_P(GroupSizes, EmptyAndShortRows) {
    // Every third row selects nothing, every other third drops its first block: neighbours in a
    // tile fill different numbers of slots.
    for (int64_t i = 0; i < problem().queries(); ++i)
        for (int64_t r = 0; r < problem().kv_heads; ++r) {
            int32_t* row = &ids_(i, r, 0);
            if ((i + r) % 3 == 0) std::fill_n(row, rule().top_k, kNoBlock);
            if ((i + r) % 3 == 1) {
                std::copy(row + 1, row + rule().top_k, row);
                row[rule().top_k - 1] = kNoBlock;
            }
        }
    expect(operands_, reference().sparse_attention(problem(), operands_, ids_));
}

TEST_P(GroupSizes, QueriesThatAreNotFiniteStayAlone) {
    for (float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        Operands o = make_operands(the_case(), subject().element);
        for (int64_t i = 0; i < problem().queries(); i += 1 + problem().queries() / 3)
            std::fill_n(&o.q(i, i % problem().query_heads, 0), problem().head_dim, bad);
        expect(o, reference().sparse_attention(problem(), o, ids_), bad > 0 ? "inf" : "nan");
    }
}

TEST_P(GroupSizes, ForeignBlocksThatAreNotFiniteChangeNothing) {
    if (the_case().values == Values::rising)
        GTEST_SKIP() << "weights vanish in double, and 0 times infinity is NaN";
    const int64_t first = problem().blocks() / 2 * problem().block_size;
    for (float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        Operands o = make_operands(the_case(), subject().element);
        for (int64_t n = first; n < std::min(first + problem().block_size, problem().keys()); ++n)
            std::fill_n(&o.v(n, 0, 0), problem().head_dim, bad);
        expect(o, reference().sparse_attention(problem(), o, ids_), bad > 0 ? "inf" : "nan");
    }
}

/// A tile's union of any size up to 9 blocks, the last of which is short: steps that take several
/// blocks end within one.
class EveryUnionSize : public GroupSizes {
protected:
    /// Of the last `size` blocks, a query selects those that it sees but for about a third, others
    /// for each query and group.
    Tensor<int32_t, 3> ids_of(int64_t size) const {
        const int64_t blocks = problem().blocks();
        Tensor<int32_t, 3> ids(ids_.shape());
        std::fill_n(ids.data(), ids.size(), kNoBlock);
        for (int64_t i = 0; i < problem().queries(); ++i)
            for (int64_t r = 0; r < problem().kv_heads; ++r) {
                int64_t n = 0;
                for (int64_t b = blocks - size; b < blocks; ++b)
                    if ((b + i + r) % 3 != 0 &&
                        b * problem().block_size <
                            visible_keys(problem())[static_cast<size_t>(i)].count)
                        ids(i, r, n++) = static_cast<int32_t>(b);
            }
        return ids;
    }
};
INSTANTIATE_TEST_SUITE_P(Tuned, EveryUnionSize,
                         testing::Combine(testing::ValuesIn(group_subjects()),
                                          testing::ValuesIn(cases(kUnions))),
                         param_name);

TEST_P(EveryUnionSize, MatchesReference) {
    for (int64_t size = 1; size <= problem().blocks(); ++size) {
        const Tensor<int32_t, 3> ids = ids_of(size);
        expect(problem(), operands_, ids, reference().sparse_attention(problem(), operands_, ids),
               "union of " + std::to_string(size));
    }
}

TEST_P(EveryUnionSize, ScoresMayRiseFromBlockToBlock) {
    // By so many powers of two, up to where weights relative to an earlier block are infinite.
    // Values have one sign, so that infinite outputs do not add up to NaN.
    for (const double powers : {7.0, 12.0, 30.0, 100.0, 119.0, 122.0, 126.5, 127.5, 200.0}) {
        Operands o = make_operands(the_case(), subject().element);
        std::fill_n(o.q.data(), o.q.size(), 1.0F);
        const double rise = powers * std::log(2.0) /
                            (problem().softmax_scale() * static_cast<double>(problem().head_dim));
        for (int64_t n = 0; n < problem().keys(); ++n)
            std::fill_n(&o.k(n, 0, 0), problem().kv_heads * problem().head_dim,
                        static_cast<float>(rise * static_cast<double>(n / problem().block_size)));
        for (int64_t i = 0; i < o.v.size(); ++i) o.v.data()[i] = 0.5F + std::fabs(o.v.data()[i]);
        for (Tensor<float, 3>* rows : {&o.k, &o.v})
            round_to(subject().element, {rows->data(), static_cast<size_t>(rows->size())});
        const Tensor<int32_t, 3> ids = ids_of(problem().blocks());
        expect(problem(), o, ids, reference().sparse_attention(problem(), o, ids),
               "a rise of 2^" + std::to_string(powers), bounds_of(o));
    }
}

TEST_P(EveryUnionSize, ABlockOfNanIsOfThoseWhoSelectedIt) {
    // Two of three queries did, of a union of 9 blocks and of 8.
    for (int64_t block : {0, 5, 8}) {
        Operands o = make_operands(the_case(), subject().element);
        const int64_t first = block * problem().block_size;
        for (int64_t n = first; n < std::min(first + problem().block_size, problem().keys()); ++n)
            for (Tensor<float, 3>* rows : {&o.k, &o.v})
                std::fill_n(&(*rows)(n, 0, 0), problem().head_dim,
                            std::numeric_limits<float>::quiet_NaN());
        const Tensor<int32_t, 3> ids = ids_of(block == 5 ? 8 : 9);
        expect(problem(), o, ids, reference().sparse_attention(problem(), o, ids),
               "block " + std::to_string(block));
    }
}

class EveryGroupSize : public GroupSizes {};
INSTANTIATE_TEST_SUITE_P(
    Tuned, EveryGroupSize,
    testing::Combine(testing::ValuesIn(group_subjects()),
                     testing::Values(make_case("to_64", {kMostHeads, 1, 64, 64, 64}, {0, 70},
                                               {0, 230}, {.top_k = 2}))),
    param_name);

TEST_P(EveryGroupSize, IsAPartOfTheLargest) {
    const Attention all = reference().sparse_attention(problem(), operands_, ids_);
    const auto heads_of = [&](const Tensor<float, 3>& rows, int64_t heads) {
        Tensor<float, 3> part({problem().queries(), heads, problem().head_dim});
        for (int64_t i = 0; i < problem().queries(); ++i)
            std::copy_n(&rows(i, 0, 0), heads * problem().head_dim, &part(i, 0, 0));
        return part;
    };
    for (int64_t heads = 1; heads <= kMostHeads; ++heads) {
        Problem p = problem();
        p.query_heads = heads;
        Operands o = make_operands(the_case(), subject().element);
        o.q = heads_of(operands_.q, heads);
        Attention want{heads_of(all.out, heads), Tensor<float, 2>({p.queries(), heads})};
        for (int64_t i = 0; i < p.queries(); ++i)
            std::copy_n(&all.lse(i, 0), heads, &want.lse(i, 0));
        expect(p, o, ids_, want, "G = " + std::to_string(heads));
    }
}

}  // namespace
}  // namespace msa::test
