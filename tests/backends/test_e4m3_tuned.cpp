// SPDX-License-Identifier: MIT
// sparse_attention of e4m3 operands at sizes that tensor cores take. Operands whose products and
// sums are exact tell each misplaced key, channel or scale apart, which the bounds of roundings do
// not. The cpu answers one case, so that the tests themselves are tested.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "core/e4m3_tolerance.h"
#include "core/number/convert.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/scaled.h"
#include "tests/support/subjects.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

class E4m3Tuned : public testing::TestWithParam<std::tuple<std::string, Case>> {
protected:
    void SetUp() override {
        const std::string& name = std::get<0>(GetParam());
        MSA_SKIP_UNLESS_USABLE(name);
        backend_ = make_backend(name);
        stored_ = backend_->space() == Space::host ? Element::f32 : Element::bf16;
        operands_ = make_operands(the_case(), Element::f32);
        ids_ = reference().index_select(problem(), the_case().rule, operands_);
    }
    const Case& the_case() const { return std::get<1>(GetParam()); }
    const Problem& problem() const { return the_case().problem; }

    /// Runs all orders against the reference on what the operands stand for. Outputs are exact but
    /// for their roundings, to bf16 at most three times, on the way through slots.
    void expect_exact(const ScaledOperands& o, double v_max, double lse) {
        const Attention want = reference().sparse_attention(problem(), o.floats(problem()), ids_);
        Bounds bounds{};
        bounds.out = 3 * storage_roundoff(Element::bf16) * v_max;
        bounds.lse = lse;
        for_orders([&](LoopOrder order) {
            EXPECT_TRUE(matches(run(o, order), want, bounds)) << where(order);
        });
    }
    void expect_close(const ScaledOperands& o, const Operands& bounded) {
        const Attention want = reference().sparse_attention(problem(), o.floats(problem()), ids_);
        for_orders([&](LoopOrder order) {
            const Attention got = run(o, order), again = run(o, order);
            EXPECT_TRUE(matches(got, want, e4m3_bounds(problem(), bounded, *backend_, stored_)))
                << where(order);
            EXPECT_TRUE(identical(again.out, got.out)) << where(order);
            EXPECT_TRUE(identical(again.lse, got.lse)) << where(order);
        });
    }
    template <typename Body>
    void for_orders(const Body& body) {
        for (LoopOrder order :
             orders_of(*backend_, problem(),
                       {.element = Element::e4m3, .top_k = ids_.extent(2), .out = stored_}))
            body(order);
    }
    Attention run(const ScaledOperands& o, LoopOrder order) {
        return sparse_attention(*backend_, problem(), o, ids_, order, stored_);
    }
    std::string where(LoopOrder order) const {
        return std::string(to_string(order)) + ", " + backend_->answered_by();
    }
    /// Scales 1/2, 1, 2 or 4, another one for each place, in place of those that operands have.
    static void power_scales(Tensor<float, 2>& scales, uint64_t stream) {
        std::mt19937_64 generator(seed() + stream);
        for (int64_t i = 0; i < scales.size(); ++i)
            scales.data()[i] = std::ldexp(1.0F, static_cast<int>(generator() % 4) - 1);
    }
    template <typename Value>
    static void fill(Tensor<e4m3, 3>& values, const Value& value) {
        for (int64_t i = 0; i < values.size(); ++i) values.data()[i] = e4m3(value(i));
    }

    std::unique_ptr<Backend> backend_;
    Element stored_ = Element::f32;
    Operands operands_;
    Tensor<int32_t, 3> ids_;
};
std::string tuned_name(const testing::TestParamInfo<std::tuple<std::string, Case>>& of) {
    return identifier(std::get<0>(of.param)) + "_" + std::get<1>(of.param).name;
}
INSTANTIATE_TEST_SUITE_P(All, E4m3Tuned,
                         testing::Combine(testing::Values("cuda", "cuda-sm80", "cuda-sm86"),
                                          testing::ValuesIn(cases(kE4m3))),
                         tuned_name);
// The last case, for the tests' own sake.
INSTANTIATE_TEST_SUITE_P(Host, E4m3Tuned,
                         testing::Combine(testing::Values("cpu"),
                                          testing::Values(cases(kE4m3).back())),
                         tuned_name);

TEST_P(E4m3Tuned, MatchesTheReference) {
    for (bool tensor : {false, true}) {
        const ScaledOperands o = store_scaled(problem(), operands_, tensor);
        expect_close(o, o.floats(problem()));
    }
}

TEST_P(E4m3Tuned, TheKernelThatAnsweredIsTheFamilysOwn) {
    if (backend_->space() == Space::host) GTEST_SKIP() << "it has no tuned kernels";
    const ScaledOperands o = store_scaled(problem(), operands_, true);
    Runner half({std::get<0>(GetParam()), Element::bf16, Element::bf16});
    half.sparse_attention(problem(), operands_, ids_);
    const std::string own = half.backend().answered_by();
    const bool lacks_size = problem().block_size == 32 && own.find("sm80") != std::string::npos;
    for_orders([&](LoopOrder order) {
        run(o, order);
        const std::string kernel = backend_->answered_by();
        EXPECT_TRUE(kernel == own || kernel.ends_with(", e4m3 needs 8.9 or later") ||
                    (lacks_size && kernel.ends_with("the block size is 32, must be 64 or 128")) ||
                    order == LoopOrder::q_outer)
            << where(order);
    });
}

TEST_P(E4m3Tuned, EqualLogitsGiveTheMean) {
    // Weights are 2^8 over powers of two, so that sums of small integers are exact. The scales of
    // values differ from block to block.
    ScaledOperands o = store_scaled(problem(), operands_, false);
    fill(o.q.values, [](int64_t) { return 0.0F; });
    std::mt19937_64 generator(seed());
    fill(o.v.values, [&](int64_t) { return static_cast<float>(generator() % 17) - 8; });
    power_scales(o.v.scales, 3);
    expect_exact(o, 8 * 4, 1e-4);
}

TEST_P(E4m3Tuned, OneKeyOfEachRowIsFound) {
    // Keys of signs, and queries that are 8 times one visible selected key: its logit is above the
    // others by far, whatever the rows' scales. Scales of keys are powers of two.
    const Problem& p = problem();
    ScaledOperands o = store_scaled(p, operands_, false);
    std::mt19937_64 generator(seed());
    fill(o.k.values, [&](int64_t) { return generator() % 2 == 0 ? 1.0F : -1.0F; });
    std::fill_n(o.k.scales.data(), o.k.scales.size(), 0.5F);
    power_scales(o.q.scales, 1);
    for (int64_t i = 0; i < o.q.scales.size(); ++i) o.q.scales.data()[i] *= 8;
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t h = 0; h < p.query_heads; ++h) {
            const std::span<const int32_t> blocks = selected(ids_, i, h / p.group_size());
            const KeyRange seen = visible_keys(p)[static_cast<size_t>(i)];
            if (blocks.empty()) continue;
            const int64_t block = blocks[generator() % blocks.size()];
            const int64_t keys = std::min(p.block_size, seen.count - block * p.block_size);
            const int64_t key = seen.first + block * p.block_size +
                                static_cast<int64_t>(generator() % static_cast<uint64_t>(keys));
            for (int64_t d = 0; d < p.head_dim; ++d)
                o.q.values(i, h, d) =
                    e4m3(8 * static_cast<float>(o.k.values(key, h / p.group_size(), d)));
        }
    fill(o.v.values, [&](int64_t) { return static_cast<float>(generator() % 17) - 8; });
    std::fill_n(o.v.scales.data(), o.v.scales.size(), 2.0F);
    expect_exact(o, 8 * 2, 0.05);
}

TEST_P(E4m3Tuned, BlocksWhoseScalesAreFarApart) {
    // What a block with small values gives to a row alone must not be lost beside the large ones of
    // others in its tile.
    ScaledOperands o = store_scaled(problem(), operands_, false);
    for (int64_t b = 0; b < o.v.scales.extent(0); ++b)
        for (int64_t r = 0; r < o.v.scales.extent(1); ++r)
            o.v.scales(b, r) = (b + r) % 2 == 0 ? 0x1p-20F : 0x1p10F;
    expect_close(o, o.floats(problem()));
    // One block for each row.
    for (int64_t i = 0; i < ids_.extent(0); ++i)
        for (int64_t r = 0; r < ids_.extent(1); ++r)
            std::fill_n(&ids_(i, r, 0) + 1, ids_.extent(2) - 1, kNoBlock);
    const Attention want = reference().sparse_attention(problem(), o.floats(problem()), ids_);
    for_orders([&](LoopOrder order) {
        const Attention got = run(o, order);
        double error = 0, norm = 0;
        for (int64_t i = 0; i < problem().queries(); ++i)
            for (int64_t h = 0; h < problem().query_heads; ++h) {
                double difference = 0, size = 0;
                for (int64_t d = 0; d < problem().head_dim; ++d) {
                    difference += std::pow(double{got.out(i, h, d)} - want.out(i, h, d), 2);
                    size += std::pow(double{want.out(i, h, d)}, 2);
                }
                if (size > 0) error = std::max(error, std::sqrt(difference / size));
                norm += size;
            }
        EXPECT_GT(norm, 0);
        EXPECT_LT(error, 0.2) << where(order);
    });
}

TEST_P(E4m3Tuned, UnseenAndForeignNanChangeNothing) {
    const Problem& p = problem();
    const ScaledOperands clean = store_scaled(p, operands_, false);
    ScaledOperands o = store_scaled(p, operands_, false);
    const e4m3 nan(std::nanf(""));
    std::vector<char> seen(static_cast<size_t>(p.keys()));
    for (const KeyRange& range : visible_keys(p))
        std::fill_n(seen.begin() + range.first, range.count, char{1});
    for (int64_t j = 0; j < p.keys(); ++j)
        if (seen[static_cast<size_t>(j)] == 0)
            for (Tensor<e4m3, 3>* of : {&o.k.values, &o.v.values})
                std::fill_n(&(*of)(j, 0, 0), p.kv_heads * p.head_dim, nan);
    expect_close(o, clean.floats(p));
    // And the values of a block that only some queries select.
    const int64_t block = p.blocks() / 2;
    for (int64_t j = block * p.block_size; j < std::min((block + 1) * p.block_size, p.keys()); ++j)
        std::fill_n(&o.v.values(j, 0, 0), p.head_dim, nan);
    expect_close(o, clean.floats(p));
}

TEST_P(E4m3Tuned, NanQueriesGiveNan) {
    ScaledOperands o = store_scaled(problem(), operands_, false);
    const Operands clean = o.floats(problem());
    std::fill_n(&o.q.values(problem().queries() / 2, 1, 0), problem().head_dim,
                e4m3(std::nanf("")));
    expect_close(o, clean);
}

}  // namespace
}  // namespace msa::test
