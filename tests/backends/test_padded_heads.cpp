// SPDX-License-Identifier: MIT
// Heads of 96, 192 and other numbers of channels on the tuned kernels, which take them as heads of
// 128 or 256: the results are those of such heads whose further channels are zeros, bit for bit. So
// are those of an index of such channels on Hopper.
#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "tests/support/compare.h"
#include "tests/support/scaled.h"
#include "tests/support/truth.h"
#include "tests/support/uploaded.h"

namespace msa::test {
namespace {

struct PaddedShape {
    const char* name;
    Sizes sizes;
    std::vector<int64_t> cu_seqlens_q, cu_seqlens_k;
    int64_t top_k;
};
std::ostream& operator<<(std::ostream& out, const PaddedShape& s) { return out << s.name; }

const PaddedShape kPaddedShapes[] = {
    {"h96", {16, 4, 96, 64, 64}, {0, 700}, {0, 700}, 5},
    {"h96_packed", {32, 2, 96, 128, 128}, {0, 100, 101, 138, 438}, {0, 228, 358, 395, 895}, 4},
    {"h96_blocks_of_32", {8, 4, 96, 64, 32}, {0, 300}, {0, 300}, 7},
    {"h96_one_group", {16, 1, 96, 64, 128}, {0, 200}, {0, 700}, 3},
    {"h96_decode", {32, 2, 96, 128, 128}, {0, 1, 2, 10}, {0, 1000, 3500, 4100}, 16},
    {"h72", {9, 3, 72, 64, 64}, {0, 300}, {0, 400}, 4},
    {"h192", {16, 2, 192, 128, 128}, {0, 200}, {0, 700}, 4},
    {"h192_blocks_of_64", {16, 4, 192, 64, 64}, {0, 170}, {0, 500}, 4},
    {"h192_decode", {16, 2, 192, 128, 128}, {0, 1, 2, 10}, {0, 1000, 3500, 4100}, 16},
    {"h248", {8, 2, 248, 64, 64}, {0, 300}, {0, 400}, 4},
};

/// Rows [N, heads, dh] as [N, heads, width], or [N, didx] as [N, width]: with zeros behind them, or
/// cut.
template <int Rank>
Tensor<float, Rank> resized(const Tensor<float, Rank>& rows, int64_t width) {
    Shape<Rank> shape = rows.shape();
    const int64_t dim = std::exchange(shape[Rank - 1], width);
    Tensor<float, Rank> to(shape);
    for (int64_t i = 0; i < rows.size() / dim; ++i)
        std::copy_n(rows.data() + i * dim, std::min(dim, width), to.data() + i * width);
    return to;
}

class TunedPaddedHeads
    : public testing::TestWithParam<std::tuple<const char*, PaddedShape, Element>> {
protected:
    void SetUp() override {
        const auto& [backend, shape, element] = GetParam();
        MSA_SKIP_UNLESS_USABLE(backend);
        runner_ = std::make_unique<Runner>(Subject{backend, element, element});
        case_ = make_case(shape.name, shape.sizes, shape.cu_seqlens_q, shape.cu_seqlens_k,
                          {.top_k = shape.top_k});
        operands_ = make_operands(case_, element);
        ids_ = reference().index_select(problem(), case_.rule, operands_);
        width_ = problem().head_dim < 128 ? 128 : 256;
        wide_problem_ = problem();
        wide_problem_.head_dim = width_;
        wide_problem_.softmax_scale_override = problem().softmax_scale();
    }
    const Problem& problem() const { return case_.problem; }
    Element element() const { return std::get<Element>(GetParam()); }
    Backend& backend() { return runner_->backend(); }
    /// The last call ran on a tuned kernel. `wide`: on heads that it has.
    bool is_tuned(bool wide = false) {
        const std::string by = backend().answered_by();
        if (by.find("_any; sm") != std::string::npos) return false;
        const std::string note = concat(", heads padded to ", width_, " channels");
        EXPECT_EQ(by.ends_with(note), !wide) << by;
        return true;
    }
    Operands wide_operands() const {
        Operands o = make_operands(case_, element());
        for (Tensor<float, 3>* rows : {&o.q, &o.k, &o.v}) *rows = resized(*rows, width_);
        return o;
    }
    Tensor<float, 3> block_mass(const Problem& p, const Operands& o) {
        const Uploaded<3> q(backend(), element(), o.q), k(backend(), element(), o.k);
        Tensor<float, 3> mass = backend().make<float, 3>({p.queries(), p.kv_heads, p.blocks()});
        backend().block_mass(p, {q, k}, {mass, {}});
        return backend().download(mass.view());
    }

    std::unique_ptr<Runner> runner_;
    Case case_;
    Problem wide_problem_;
    Operands operands_;
    Tensor<int32_t, 3> ids_;
    int64_t width_ = 0;
};
INSTANTIATE_TEST_SUITE_P(All, TunedPaddedHeads,
                         testing::Combine(testing::Values("cuda", "cuda-sm80"),
                                          testing::ValuesIn(kPaddedShapes),
                                          testing::Values(Element::bf16, Element::f16)),
                         [](const auto& of) {
                             std::string name =
                                 concat(std::get<0>(of.param), '_', std::get<1>(of.param).name, '_',
                                        to_string(std::get<2>(of.param)));
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

TEST_P(TunedPaddedHeads, AttendAsHeadsWithZerosBehindThem) {
    const Operands wide = wide_operands();
    int tuned = 0;
    for (const LoopOrder order :
         {LoopOrder::automatic, LoopOrder::tile_union, LoopOrder::kv_outer}) {
        SCOPED_TRACE(to_string(order));
        if (!backend()
                 .supports(problem(), SparseAttentionRequest{.element = element(),
                                                             .top_k = ids_.extent(2),
                                                             .order = order,
                                                             .out = element()})
                 .yes)
            continue;
        const Attention got = runner_->sparse_attention(problem(), operands_, ids_, order);
        if (!is_tuned()) continue;
        ++tuned;
        const Attention want = runner_->sparse_attention(wide_problem_, wide, ids_, order);
        EXPECT_TRUE(is_tuned(true));
        EXPECT_TRUE(identical(got.out, resized(want.out, problem().head_dim)));
        EXPECT_TRUE(identical(got.lse, want.lse));
    }
    EXPECT_GE(tuned, 2);
}

TEST_P(TunedPaddedHeads, GradientsAreThoseOfHeadsWithZerosBehindThem) {
    Backward back;
    back.saved = runner_->sparse_attention(problem(), operands_, ids_);
    back.d_out = make_d_out(operands_.q.shape(), element());
    const AttentionGrad got =
        runner_->sparse_attention_grad(problem(), operands_, ids_, back, LoopOrder::automatic);
    if (!is_tuned()) GTEST_SKIP() << backend().answered_by();
    back.saved.out = resized(back.saved.out, width_);
    back.d_out = resized(back.d_out, width_);
    const AttentionGrad want = runner_->sparse_attention_grad(wide_problem_, wide_operands(), ids_,
                                                              back, LoopOrder::automatic);
    EXPECT_TRUE(is_tuned(true));
    EXPECT_TRUE(identical(got.d_q, resized(want.d_q, problem().head_dim)));
    EXPECT_TRUE(identical(got.d_k, resized(want.d_k, problem().head_dim)));
    EXPECT_TRUE(identical(got.d_v, resized(want.d_v, problem().head_dim)));
}

TEST_P(TunedPaddedHeads, BlockMassIsThatOfHeadsWithZerosBehindThem) {
    const Tensor<float, 3> got = block_mass(problem(), operands_);
    if (!is_tuned()) GTEST_SKIP() << backend().answered_by();
    EXPECT_TRUE(identical(got, block_mass(wide_problem_, wide_operands())));
    EXPECT_TRUE(is_tuned(true));
}

/// What lies behind a head's channels are those of the next head, which it does not see.
TEST_P(TunedPaddedHeads, HeadsThatAreNotFiniteStayAlone) {
    if (problem().kv_heads == 1) GTEST_SKIP() << "there is one group";
    Operands o = make_operands(case_, element());
    for (const int64_t key : {int64_t{0}, problem().keys() - 1})
        for (Tensor<float, 3>* rows : {&o.k, &o.v})
            std::fill_n(&(*rows)(key, problem().kv_heads - 1, 0), problem().head_dim,
                        std::numeric_limits<float>::quiet_NaN());
    const Attention want = reference().sparse_attention(problem(), o, ids_);
    const int64_t nans = std::count_if(want.out.data(), want.out.data() + want.out.size(),
                                       [](float x) { return std::isnan(x); });
    EXPECT_GT(nans, 0);
    EXPECT_LE(nans, want.out.size() / problem().kv_heads);
    for (const LoopOrder order : orders_of(*runner_, problem(), ids_.extent(2)))
        EXPECT_TRUE(matches(runner_->sparse_attention(problem(), o, ids_, order), want,
                            half_bounds(problem(), operands_)))
            << to_string(order);
}

const PaddedShape kPaddedIndices[] = {
    {"i96", {16, 4, 64, 96, 64}, {0, 300}, {0, 900}, 5},
    {"i80_decode", {32, 2, 64, 80, 128}, {0, 1, 2, 10}, {0, 1000, 3500, 4100}, 16},
    {"i192", {16, 2, 64, 192, 128}, {0, 200}, {0, 900}, 4},
    {"i192_blocks_of_32", {30, 10, 64, 192, 32}, {0, 90}, {0, 1300}, 32},
    {"i192_decode", {16, 2, 64, 192, 128}, {0, 1, 2, 10}, {0, 1000, 3500, 4100}, 16},
    {"i240_packed", {32, 2, 64, 240, 64}, {0, 100, 101, 138, 438}, {0, 228, 358, 395, 895}, 4},
};

class TunedPaddedIndex : public testing::TestWithParam<std::tuple<PaddedShape, Element>> {
protected:
    void SetUp() override {
        MSA_SKIP_UNLESS_USABLE("cuda");
        backend_ = make_backend("cuda");
        const PaddedShape& shape = std::get<0>(GetParam());
        case_ = make_case(shape.name, shape.sizes, shape.cu_seqlens_q, shape.cu_seqlens_k,
                          {.top_k = shape.top_k});
    }
    const Problem& problem() const { return case_.problem; }
    Tensor<int32_t, 3> select(const Problem& p, const Operands& o) {
        const Element element = std::get<Element>(GetParam());
        const Uploaded<3> index_q(*backend_, element, o.index_q);
        const Uploaded<2> index_k(*backend_, element, o.index_k);
        auto ids = backend_->make<int32_t, 3>({p.queries(), p.kv_heads, case_.rule.top_k});
        backend_->index_select(p, case_.rule, {index_q, index_k}, ids);
        by_ = backend_->answered_by();
        return backend_->download(ids.view());
    }

    std::unique_ptr<Backend> backend_;
    Case case_;
    std::string by_;  // what answered
};
INSTANTIATE_TEST_SUITE_P(All, TunedPaddedIndex,
                         testing::Combine(testing::ValuesIn(kPaddedIndices),
                                          testing::Values(Element::bf16, Element::f16,
                                                          Element::e4m3)),
                         [](const auto& of) {
                             return concat(std::get<0>(of.param).name, '_',
                                           to_string(std::get<1>(of.param)));
                         });

TEST_P(TunedPaddedIndex, SelectsAsAnIndexWithZerosBehindIt) {
    Operands o = make_operands(case_, std::get<Element>(GetParam()));
    const Tensor<int32_t, 3> got = select(problem(), o);
    if (by_.find("instructions of compute capability") != std::string::npos)
        GTEST_SKIP() << by_;  // not Hopper
    const int64_t width = problem().index_dim < 128 ? 128 : 256;
    EXPECT_EQ(by_, concat("index_select_sm90, index padded to ", width, " channels"));
    Problem wide = problem();
    wide.index_dim = width;
    wide.index_scale_override = problem().index_scale();
    o.index_q = resized(o.index_q, width);
    o.index_k = resized(o.index_k, width);
    EXPECT_TRUE(identical(got, select(wide, o)));
    EXPECT_EQ(by_, "index_select_sm90");
}

/// What lies behind a row's channels is the next row, which it does not see.
TEST_P(TunedPaddedIndex, SelectsAsTheReferenceBesideRowsOfNan) {
    case_.values = Values::ternary;  // products are exact
    Operands o = make_operands(case_, Element::f32);
    const int64_t query = problem().queries() / 2, key = problem().keys() / 3;
    for (int64_t d = 0; d < problem().index_dim; ++d)
        o.index_q(query, problem().kv_heads - 1, d) = o.index_k(key, d) =
            std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(identical(select(problem(), o), reference().index_select(problem(), case_.rule, o)))
        << by_;
}

TEST(PaddedIndex, OfInt8SelectsAsTheReference) {
    MSA_SKIP_UNLESS_USABLE("cuda");
    const std::unique_ptr<Backend> backend = make_backend("cuda");
    Runner truth = reference();
    for (const PaddedShape& shape : kPaddedIndices) {
        const Case c = make_case(shape.name, shape.sizes, shape.cu_seqlens_q, shape.cu_seqlens_k,
                                 {.top_k = shape.top_k});
        const ScaledIndex o = store_index(c.problem, make_operands(c, Element::f32));
        EXPECT_TRUE(identical(index_select(*backend, c.problem, c.rule, o),
                              index_select(truth.backend(), c.problem, c.rule, o)))
            << shape << ", " << backend->answered_by();
    }
}

}  // namespace
}  // namespace msa::test
