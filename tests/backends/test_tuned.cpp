// SPDX-License-Identifier: MIT
// The kernels tuned for one GPU generation answer only where operands, outputs and sizes suit them:
// these cases do. On other devices the plain kernels are tested once more.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "core/error.h"
#include "core/number/convert.h"
#include "core/number/e4m3.h"
#include "core/tolerance.h"
#include "tests/support/compare.h"
#include "tests/support/scaled.h"
#include "tests/support/truth.h"
#include "tests/support/uploaded.h"

namespace msa::test {
namespace {

class Tuned : public testing::TestWithParam<HalfCase> {
protected:
    void SetUp() override {
        MSA_SKIP_UNLESS_USABLE(GetParam().backend);
        runner_ = std::make_unique<Runner>(Subject{GetParam().backend, element(), element()});
        backend_ = &runner_->backend();
        operands_ = make_operands(GetParam(), element());
        ids_ = reference().index_select(problem(), GetParam().rule, operands_);
    }
    const Problem& problem() const { return GetParam().problem; }
    Element element() const { return GetParam().element; }

    Attention sparse_attention(const Operands& o, LoopOrder order) {
        return runner_->sparse_attention(problem(), o, ids_, order);
    }
    std::vector<LoopOrder> orders() { return orders_of(*runner_, problem(), ids_.extent(2)); }
    Attention dense_attention(const Operands& o) { return runner_->dense_attention(problem(), o); }
    Tensor<int32_t, 3> index_select(const Operands& o) { return index_select(o, element()); }
    Tensor<int32_t, 3> index_select(const Operands& o, Element in) {
        const Uploaded<3> index_q(*backend_, in, o.index_q);
        const Uploaded<2> index_k(*backend_, in, o.index_k);
        Tensor<int32_t, 3> ids = backend_->make<int32_t, 3>(ids_.shape());
        backend_->index_select(problem(), GetParam().rule, {index_q, index_k}, ids);
        return backend_->download(ids.view());
    }
    Tensor<float, 3> block_mass(const Operands& o) {
        const Uploaded<3> q(*backend_, element(), o.q), k(*backend_, element(), o.k);
        Tensor<float, 3> mass =
            backend_->make<float, 3>({problem().queries(), problem().kv_heads, problem().blocks()});
        backend_->block_mass(problem(), {q, k}, {mass, {}});
        return backend_->download(mass.view());
    }
    Bounds bounds_here() const { return half_bounds(problem(), operands_); }
    /// Keys and values that no query sees become NaN.
    Operands with_unseen_nan() const {
        Operands o = make_operands(GetParam(), element());
        std::vector<char> seen(static_cast<size_t>(problem().keys()));
        for (const KeyRange& range : visible_keys(problem()))
            std::fill_n(seen.begin() + range.first, range.count, char{1});
        const auto spoil = [&](float* rows, int64_t width) {
            for (size_t n = 0; n < seen.size(); ++n)
                if (seen[n] == 0)
                    std::fill_n(rows + static_cast<int64_t>(n) * width, width,
                                std::numeric_limits<float>::quiet_NaN());
        };
        spoil(o.k.data(), problem().kv_heads * problem().head_dim);
        spoil(o.v.data(), problem().kv_heads * problem().head_dim);
        spoil(o.index_k.data(), problem().index_dim);
        return o;
    }

    std::unique_ptr<Runner> runner_;
    Backend* backend_ = nullptr;  // the runner's
    Operands operands_;
    Tensor<int32_t, 3> ids_;
};
INSTANTIATE_TEST_SUITE_P(All, Tuned, testing::ValuesIn(of_all_families(cases(kTuned))),
                         [](const auto& instance) { return std::string(instance.param.name); });

TEST_P(Tuned, SparseAttentionMatchesReferenceInEveryOrder) {
    const Attention want = reference().sparse_attention(problem(), operands_, ids_);
    for (LoopOrder order : orders()) {
        const Attention got = sparse_attention(operands_, order);
        EXPECT_TRUE(matches(got, want, bounds_here())) << to_string(order);
        const Attention again = sparse_attention(operands_, order);
        EXPECT_TRUE(identical(again.out, got.out)) << to_string(order);
        EXPECT_TRUE(identical(again.lse, got.lse)) << to_string(order);
    }
}

TEST_P(Tuned, DenseAttentionMatchesReference) {
    const Attention want = reference().dense_attention(problem(), operands_);
    const Attention got = dense_attention(operands_);
    EXPECT_TRUE(matches(got, want, bounds_here())) << backend_->answered_by();
    const Attention again = dense_attention(operands_);
    EXPECT_TRUE(identical(again.out, got.out)) << backend_->answered_by();
    EXPECT_TRUE(identical(again.lse, got.lse)) << backend_->answered_by();
}

TEST_P(Tuned, DenseAttentionIsCudnnsWhereThatFits) {
    if (backend_->device().find("cuDNN") == std::string::npos)
        GTEST_SKIP() << "cuDNN is missing here";
    dense_attention(operands_);
    // Queries that see nothing, and positions with gaps, are the plain kernel's.
    const std::string& name = GetParam().name;
    const bool fits = !name.ends_with("empty_keys") && !name.ends_with("more_queries_than_keys") &&
                      !name.ends_with("sampled");
    EXPECT_EQ(backend_->answered_by().starts_with("cuDNN"), fits) << backend_->answered_by();
}

TEST_P(Tuned, DenseAttentionToNanSpreadsToThoseThatSeeIt) {
    Operands o = make_operands(GetParam(), element());
    const int64_t key = problem().keys() / 2;
    o.k(key, 0, 3) = o.v(key, 0, 3) = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(
        matches(dense_attention(o), reference().dense_attention(problem(), o), bounds_here()));
}

TEST_P(Tuned, IndexSelectFollowsTheScores) {
    const Tensor<float, 3> scores = reference().index_scores(problem(), operands_);
    const Tensor<int32_t, 3> got = index_select(operands_);
    EXPECT_TRUE(selection_follows(problem(), GetParam().rule, scores, got, bounds_here().scores));
    EXPECT_TRUE(identical(index_select(operands_), got));
}

template <int Rank, typename Round>
void transform(Tensor<float, Rank>& values, Round round) {
    std::transform(values.data(), values.data() + values.size(), values.data(), round);
}

TEST_P(Tuned, IndexSelectOfE4m3FollowsTheScores) {
    Operands o = make_operands(GetParam(), element());
    const auto round = [](float x) { return static_cast<float>(e4m3(x)); };
    transform(o.index_q, round);
    transform(o.index_k, round);
    const Problem& p = problem();
    const double bound = e4m3_logit_bound(p.index_scale(), largest_norm<3>(o.index_q),
                                          largest_norm<2>(o.index_k), p.index_dim);
    index_select(o);
    const std::string half = backend_->answered_by();
    EXPECT_TRUE(selection_follows(p, GetParam().rule, reference().index_scores(p, o),
                                  index_select(o, Element::e4m3), bound));
    const std::string kernel = backend_->answered_by();
    EXPECT_TRUE(kernel == half || kernel.ends_with(", e4m3 needs 8.9 or later")) << kernel;
}

TEST_P(Tuned, IndexOfInt8IsTheReferencesBitForBit) {
    const Problem& p = problem();
    ScaledIndex o = store_index(p, operands_);
    Runner truth = reference();
    for (const bool spoilt : {false, true}) {
        SCOPED_TRACE(spoilt ? "with NaN" : "without NaN");
        if (spoilt) {  // of some rows and blocks
            for (int64_t i = 0; i < o.q.scales.size(); i += 7) o.q.scales.data()[i] = std::nanf("");
            for (int64_t b = 0; b < o.k.scales.size(); b += 3) o.k.scales.data()[b] = std::nanf("");
        }
        EXPECT_TRUE(identical(index_scores(*backend_, p, o), index_scores(truth.backend(), p, o)));
        const Tensor<int32_t, 3> got = test::index_select(*backend_, p, GetParam().rule, o);
        const std::string kernel = backend_->answered_by();
        EXPECT_TRUE(identical(got, test::index_select(truth.backend(), p, GetParam().rule, o)))
            << kernel;
        index_select(operands_);
        EXPECT_EQ(kernel, backend_->answered_by());
    }
}

TEST_P(Tuned, IndexSelectOfSmallIntegersIsExactInEveryType) {
    Operands o = make_operands(GetParam(), element());
    const auto round = [](float x) { return std::clamp(std::nearbyint(x), -2.0F, 2.0F); };
    transform(o.index_q, round);
    transform(o.index_k, round);
    const Tensor<int32_t, 3> want = reference().index_select(problem(), GetParam().rule, o);
    EXPECT_TRUE(identical(index_select(o), want));
    EXPECT_TRUE(identical(index_select(o, Element::e4m3), want));
}

TEST_P(Tuned, BlockMassMatchesReference) {
    const BlockMass want = reference().block_mass(problem(), operands_);
    const Tensor<float, 3> got = block_mass(operands_);
    EXPECT_TRUE(close(got, want.mass, bounds_here().mass));
    const std::string kernel = backend_->answered_by();
    EXPECT_TRUE(identical(block_mass(operands_), got));
    index_select(operands_);  // which has as many sizes
    const std::string by = backend_->answered_by();
    const bool has_heads = problem().head_dim <= 128 || by.starts_with("index_select_sm90");
    EXPECT_EQ(kernel.starts_with("block_mass_sm"), has_heads && by.starts_with("index_select_sm"))
        << kernel;
}

TEST_P(Tuned, CapturedCallsFollowTheirViews) {
    const Problem& p = problem();
    const Uploaded<3> index_q(*backend_, element(), operands_.index_q);
    Uploaded<2> index_k(*backend_, element(), operands_.index_k);
    const Uploaded<3> q(*backend_, element(), operands_.q), k(*backend_, element(), operands_.k),
        v(*backend_, element(), operands_.v), out(*backend_, element(), operands_.q);
    Tensor<int32_t, 3> ids = backend_->make<int32_t, 3>(ids_.shape());
    Tensor<float, 2> lse = backend_->make<float, 2>({p.queries(), p.query_heads});
    const auto calls = [&] {
        backend_->index_select(p, GetParam().rule, {index_q, index_k}, ids);
        backend_->sparse_attention(p, {q, k, v}, ids, {out, lse});
    };
    index_select(operands_);
    if (backend_->answered_by().starts_with("index_select_any")) {  // which copies from the host
        EXPECT_THROW(backend_->make_graph(calls), UnsupportedError);
        return;
    }
    const std::function<void()> again = backend_->make_graph(calls);
    // Other keys select other blocks.
    Operands other = make_operands(GetParam(), element());
    std::reverse(other.index_k.data(), other.index_k.data() + other.index_k.size());
    index_k.assign(other.index_k);
    const auto results = [&] {
        return std::tuple(backend_->download(ids.view()), out.download(),
                          backend_->download(lse.view()));
    };
    again();
    const auto [ids_again, out_again, lse_again] = results();
    calls();
    const auto [ids_direct, out_direct, lse_direct] = results();
    EXPECT_TRUE(identical(ids_again, ids_direct));
    EXPECT_TRUE(identical(lse_again, lse_direct));
    EXPECT_TRUE(identical(out_again, out_direct));
    EXPECT_TRUE(identical(ids_direct, index_select(other)));
}

TEST_P(Tuned, UnseenNanChangesNothing) {
    const Operands spoilt = with_unseen_nan();
    EXPECT_TRUE(identical(index_select(spoilt), index_select(operands_)));
    EXPECT_TRUE(identical(block_mass(spoilt), block_mass(operands_)));
    const Attention want = reference().sparse_attention(problem(), operands_, ids_);
    for (LoopOrder order : orders())
        EXPECT_TRUE(matches(sparse_attention(spoilt, order), want, bounds_here()))
            << to_string(order);
    EXPECT_TRUE(matches(dense_attention(spoilt), reference().dense_attention(problem(), operands_),
                        bounds_here()));
}

TEST_P(Tuned, NanQueriesGiveNan) {
    Operands o = make_operands(GetParam(), element());
    const int64_t query = problem().queries() / 2;
    for (int64_t d = 0; d < problem().head_dim; ++d)
        o.q(query, 1, d) = std::numeric_limits<float>::quiet_NaN();
    const Attention want = reference().sparse_attention(problem(), o, ids_);
    for (LoopOrder order : orders())
        EXPECT_TRUE(matches(sparse_attention(o, order), want, bounds_here())) << to_string(order);
}

TEST_P(Tuned, ForeignBlocksOfNanChangeNothing) {
    // The first group's values are NaN in a block that only some queries select.
    Operands o = make_operands(GetParam(), element());
    const int64_t block = problem().blocks() / 2;
    const Attention clean = reference().sparse_attention(problem(), o, ids_);
    for (int64_t n = block * problem().block_size;
         n < std::min((block + 1) * problem().block_size, problem().keys()); ++n)
        for (int64_t d = 0; d < problem().head_dim; ++d)
            o.v(n, 0, d) = std::numeric_limits<float>::quiet_NaN();
    const Attention want = reference().sparse_attention(problem(), o, ids_);
    for (LoopOrder order : orders()) {
        const Attention before = sparse_attention(operands_, order);
        const Attention got = sparse_attention(o, order);
        EXPECT_TRUE(matches(got, want, bounds_here())) << to_string(order);
        EXPECT_TRUE(close(got.lse, clean.lse, bounds_here().lse)) << to_string(order);
        // Nor what comes after it, such as rows to be computed again.
        EXPECT_TRUE(identical(sparse_attention(operands_, order).out, before.out))
            << to_string(order);
    }
}

}  // namespace
}  // namespace msa::test
