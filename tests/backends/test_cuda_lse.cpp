// SPDX-License-Identifier: MIT
// The lse of index_select by blocks of keys, by wgmma on Hopper and by mma.sync, against the
// reference and the plain kernel: groups of all sizes, ragged packs, rows of few blocks and of
// none, keys that a row does not see, scores that are not finite.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "core/error.h"
#include "core/reference/reference_backend.h"
#include "gpu/plan/tuned.h"
#include "gpu/runtime.h"
#include "tests/support/compare.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

/// Groups of 1 to 16 heads; each of the four sizes of the wgmma kernel with four of them.
std::vector<HalfCase> lse_cases() {
    std::vector<Case> all;
    for (int64_t heads = 1; heads <= 16; ++heads) {
        const int64_t groups = 1 + heads % 3;
        const Sizes sizes{.query_heads = heads * groups,
                          .kv_heads = groups,
                          .head_dim = 128,
                          .index_dim = heads % 2 == 0 ? 128 : 64,
                          .block_size = heads / 2 % 2 == 0 ? 128 : 64};
        all.push_back(make_case(concat('g', heads), sizes, {0, 100, 101, 138, 438},
                                {0, 228, 358, 395, 895}, {.top_k = 2 + heads % 4}));
    }
    const Sizes wide{4, 2, 128, 128, 128}, narrow{4, 2, 64, 64, 64};
    // More queries than an item holds, in every product of an item.
    all.push_back(make_case("many_uses", wide, {0, 2600}, {0, 2600}, {3, 1, 1}));
    all.push_back(make_case("many_uses_narrow", narrow, {0, 2600}, {0, 2600}, {3, 1, 1}));
    all.push_back(make_case("few_blocks", wide, {0, 150}, {0, 300}, {.top_k = 9}));
    all.push_back(make_case("one_token", narrow, {0, 1}, {0, 1}, {.top_k = 2}));
    // Rows that see no key: a sequence without one, and queries before the first.
    all.push_back(make_case("no_keys", wide, {0, 5, 20, 90}, {0, 0, 15, 45}, {.top_k = 2}));
    all.push_back(make_case("no_key_at_all", wide, {0, 5}, {0, 0}, {.top_k = 2}));
    std::vector<HalfCase> both = of_all_families(all);
    std::erase_if(both, [](const HalfCase& c) { return c.backend == "cuda-sm86"; });
    return both;
}

class CudaLse : public testing::TestWithParam<HalfCase> {
protected:
    void SetUp() override {
        MSA_SKIP_UNLESS_USABLE(GetParam().backend);
        runner_.emplace(Subject{GetParam().backend, GetParam().element});
        operands_ = fresh();
        bound_ = bounds(problem(), operands_).index_lse;
    }
    const Problem& problem() const { return GetParam().problem; }
    const SelectionRule& rule() const { return GetParam().rule; }
    Operands fresh() const { return make_operands(GetParam(), GetParam().element); }
    Selection select(const Operands& o) { return runner_->index_select_lse(problem(), rule(), o); }
    /// By the reference, over these ids.
    Tensor<float, 2> truth(const Operands& o, const Tensor<int32_t, 3>& ids) const {
        Tensor<float, 2> lse({problem().queries(), problem().kv_heads});
        reference::index_lse(problem(), std::as_const(o.index_q).view(),
                             std::as_const(o.index_k).view(), ids.view(), lse);
        return lse;
    }

    std::optional<Runner> runner_;
    Operands operands_;
    double bound_ = 0;
};
INSTANTIATE_TEST_SUITE_P(All, CudaLse, testing::ValuesIn(lse_cases()),
                         [](const auto& instance) { return instance.param.name; });

bool same_ids(const Tensor<int32_t, 3>& a, int64_t i, const Tensor<int32_t, 3>& b, int64_t j,
              int64_t group) {
    const int64_t k = a.extent(2);
    return std::equal(&a(i, group, 0), &a(i, group, 0) + k, &b(j, group, 0));
}

TEST_P(CudaLse, MatchesReferenceAndPlainKernel) {
    const Selection got = select(operands_);
    EXPECT_TRUE(close(got.lse, truth(operands_, got.ids), bound_));
    // Float operands of the same values are the plain kernel's.
    const Selection plain =
        Runner({GetParam().backend, Element::f32}).index_select_lse(problem(), rule(), operands_);
    int64_t rows = 0;
    for (int64_t i = 0; i < problem().queries(); ++i)
        for (int64_t r = 0; r < problem().kv_heads; ++r) {
            if (!same_ids(got.ids, i, plain.ids, i, r)) continue;  // a tie
            ++rows;
            if (std::isinf(plain.lse(i, r)))
                EXPECT_EQ(got.lse(i, r), plain.lse(i, r)) << i << ", " << r;
            else
                EXPECT_NEAR(got.lse(i, r), plain.lse(i, r), 2 * bound_) << i << ", " << r;
        }
    EXPECT_GT(2 * rows, got.lse.size());
}

TEST_P(CudaLse, ARowHasItsBitsWhateverIsBesideIt) {
    const Selection got = select(operands_);
    const Selection again = Runner({GetParam().backend, GetParam().element})
                                .index_select_lse(problem(), rule(), operands_);
    EXPECT_TRUE(identical(again.ids, got.ids));
    EXPECT_TRUE(identical(again.lse, got.lse));
    // Other uses of the same blocks: other rows of the products, other items.
    const QueryRange range{problem().queries() / 3, problem().queries() - problem().queries() / 4};
    const Selection part = runner_->index_select_lse(problem().with_queries(range), rule(),
                                                     with_queries(operands_, range));
    int64_t rows = 0;
    for (int64_t i = range.begin; i < range.end; ++i)
        for (int64_t r = 0; r < problem().kv_heads; ++r) {
            if (!same_ids(got.ids, i, part.ids, i - range.begin, r)) continue;
            ++rows;
            EXPECT_EQ(part.lse(i - range.begin, r), got.lse(i, r)) << i << ", " << r;
        }
    EXPECT_GT(2 * rows, part.lse.size());
}

TEST_P(CudaLse, KeysThatARowDoesNotSeeHaveNoInfluence) {
    const Selection clean = select(operands_);
    const std::vector<int64_t>& starts = problem().batch.cu_seqlens_k();
    // The last query of a sequence alone sees its last key. The first of a sequence stands behind
    // the last block of the sequence before.
    for (const bool last : {true, false}) {
        Operands o = fresh();
        for (size_t s = 1; s < starts.size(); ++s)
            if (starts[s] > starts[s - 1] && (last || s + 1 == starts.size()))
                o.index_k(last ? starts[s] - 1 : starts[s - 1], 3) = kNan;
        const Selection got = select(o);
        EXPECT_TRUE(close(got.lse, truth(o, got.ids), bound_));
        int64_t spoiled = 0;
        for (int64_t i = 0; i < problem().queries(); ++i)
            for (int64_t r = 0; r < problem().kv_heads; ++r) {
                const float lse = got.lse(i, r);
                spoiled += std::isnan(lse);
                if (std::isnan(lse) || !same_ids(clean.ids, i, got.ids, i, r)) continue;
                EXPECT_EQ(lse, clean.lse(i, r)) << i << ", " << r;
            }
        if (!last) continue;  // a block that scores NaN may be in no row
        EXPECT_EQ(spoiled > 0, problem().keys() > 0);
        EXPECT_LE(spoiled, problem().batch.sequences() * problem().kv_heads);
    }
}

TEST_P(CudaLse, ScoresThatAreNotFinite) {
    Operands o = fresh();
    const int64_t queries = problem().queries(), groups = problem().kv_heads;
    o.index_q(queries - 1, groups - 1, 5) = kNan;
    if (queries > 1) o.index_q(queries * 9 / 10, 0, 2) = kInf;
    if (problem().keys() > 50) o.index_k(5, 7) = -kInf;  // no row's only key
    const Selection got = select(o);
    const Tensor<float, 2> want = truth(o, got.ids);
    EXPECT_TRUE(close(got.lse, want, bound_));
    int64_t nan = 0, finite = 0;
    for (int64_t i = 0; i < want.size(); ++i) {
        nan += std::isnan(want.data()[i]);
        finite += std::isfinite(want.data()[i]);
    }
    EXPECT_EQ(nan > 0, problem().keys() > 0);  // no key, no score: -inf
    if (queries > 1) {
        EXPECT_EQ(finite > 0, problem().keys() > 0);
    }
}

/// Up to k visible blocks for each row, often fewer, sometimes none.
Tensor<int32_t, 3> any_ids(const Problem& p, int64_t top_k) {
    Tensor<int32_t, 3> ids({p.queries(), p.kv_heads, top_k});
    std::fill_n(ids.data(), ids.size(), kNoBlock);
    std::mt19937 random(17);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const int64_t count = visible_keys(p)[static_cast<size_t>(i)].count;
        std::vector<int32_t> blocks(static_cast<size_t>(ceil_div(count, p.block_size)));
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            for (size_t n = 0; n < blocks.size(); ++n) blocks[n] = static_cast<int32_t>(n);
            std::shuffle(blocks.begin(), blocks.end(), random);
            const auto most = std::min(blocks.size(), static_cast<size_t>(top_k));
            const auto kept = static_cast<int64_t>(random() % (most + 1));
            std::sort(blocks.begin(), blocks.begin() + kept);
            std::copy_n(blocks.begin(), kept, &ids(i, r, 0));
        }
    }
    return ids;
}

TEST_P(CudaLse, IndexKlMakesItForAnyIds) {
    // The loss has the row's lse as a term, so that it is off by as much as that is.
    const Tensor<int32_t, 3> ids = any_ids(problem(), rule().top_k);
    const IndexKl plain = runner_->index_kl(problem(), operands_, ids.view());
    KlRequest given;
    given.main_lse = runner_->sparse_attention(problem(), operands_, ids.view()).lse;
    const auto run = [&] {
        return runner_->index_kl(problem(), operands_, ids.view(), Teacher::mean, given);
    };
    const IndexKl got = run(), again = run();
    EXPECT_TRUE(matches(got, plain, bounds(problem(), operands_, Teacher::mean, true)));
    EXPECT_TRUE(identical(again.kl, got.kl));
    EXPECT_TRUE(identical(again.d_index_q, got.d_index_q));
    EXPECT_TRUE(identical(again.d_index_k, got.d_index_k));
    for (int64_t i = 0; i < problem().queries(); ++i)
        for (int64_t r = 0; r < problem().kv_heads; ++r)
            if (ids(i, r, 0) == kNoBlock) {
                EXPECT_EQ(got.kl(i, r), 0) << i << ", " << r;
            }
}

TEST(CudaLsePlan, WgmmaTakesItsSizesOnHopper) {
    const cuda::Device hopper{.capability = 90, .compiled_for = 90};
    const auto answer = [&](const cuda::Device& device, int64_t index_dim, int64_t block_size,
                            int64_t top_k, Element element = Element::bf16) {
        alignas(16) static const uint16_t value = 0;  // nobody reads it
        const Problem p = square_problem(1024, 4, 2, 128, index_dim, block_size);
        const In<3> index_q{&value, {1024, 2, index_dim}, element, Space::device};
        const In<2> index_k{&value, {1024, index_dim}, element, Space::device};
        const Support taken = cuda::takes_index_lse_sm90(device, p, {index_q, index_k}, top_k);
        return taken.yes ? "yes" : taken.why_not;
    };
    for (int64_t index_dim : {64, 128})
        for (int64_t block_size : {64, 128})
            for (int64_t top_k : {0, 16})
                for (Element element : {Element::bf16, Element::f16})
                    EXPECT_EQ(answer(hopper, index_dim, block_size, top_k, element), "yes");
    EXPECT_EQ(answer(hopper, 128, 32, 16), "the block size is 32, must be 64 or 128");
    EXPECT_EQ(answer(hopper, 32, 128, 16), "the index dim is 32, must be 64 or 128");
    EXPECT_EQ(answer(hopper, 128, 128, 16, Element::f32),
              "an operand or output is f32, must be bf16 or f16");
    EXPECT_EQ(answer(hopper, 128, 128, int64_t{1} << 21),
              "Nq k is 2147483648, must be at most 2147483647");
    for (const cuda::Device& other :
         {cuda::Device{.capability = 90, .as_ampere = true}, cuda::Device{.capability = 100}})
        EXPECT_EQ(answer(other, 128, 128, 16),
                  "it has no kernel in the instructions of compute capability 8.0");
}

}  // namespace
}  // namespace msa::test
