// SPDX-License-Identifier: MIT
// Keys in the pages of a cache at the sizes of the tuned kernels, which give what they give for the
// same keys packed, bit for bit where unused rows are finite.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"
#include "tests/support/compare.h"
#include "tests/support/pages.h"
#include "tests/support/runner.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

struct PagedShape {
    const char* name;
    Sizes sizes;
    std::vector<int64_t> keys;
    int64_t most_queries, page_size;
    Pool how = Pool::apart;
};
std::ostream& operator<<(std::ostream& out, const PagedShape& s) { return out << s.name; }

constexpr Sizes kPaper{64, 4, 128, 128, 128};
const std::vector<int64_t> kLengths{127, 0, 1, 4173, 128, 129};
const PagedShape kShapes[] = {
    {"decode", kPaper, kLengths, 1, 128},
    {"decode_256", kPaper, kLengths, 1, 256, Pool::by_page},
    {"decode_64", kPaper, kLengths, 1, 64, Pool::by_row},
    {"decode_192", {16, 2, 64, 64, 64}, kLengths, 1, 192},
    {"drafts", kPaper, kLengths, 8, 128, Pool::by_row},
    {"drafts_64", kPaper, kLengths, 5, 64},
    {"chunk", kPaper, {1500, 0, 129, 700}, 300, 128, Pool::by_page},
    {"chunk_64", kPaper, {1500, 0, 129, 700}, 300, 64, Pool::by_row},
    {"small_blocks", {64, 16, 128, 64, 32}, {777, 40}, 500, 64},
    {"two_teams", {32, 2, 64, 128, 64}, {1000, 65}, 700, 192, Pool::by_page},
    {"few_heads", {12, 4, 64, 64, 128}, {999, 1, 200}, 400, 64},
    {"h96_decode", {32, 2, 96, 128, 128}, kLengths, 1, 128, Pool::by_page},
    {"h96_chunk", {64, 16, 96, 64, 32}, {777, 40}, 500, 64},
    {"h192_decode", {32, 2, 192, 128, 128}, kLengths, 1, 64},
    {"h192_chunk", {32, 8, 192, 64, 64}, {1500, 0, 129, 700}, 300, 128, Pool::by_page},
    {"h256_decode", {32, 2, 256, 128, 128}, kLengths, 1, 64},
    {"h256_chunk", {64, 4, 256, 64, 128}, {1500, 0, 129, 700}, 300, 64, Pool::by_row},
    {"h256_chunk_128", {32, 8, 256, 64, 64}, {1500, 0, 129, 700}, 300, 128, Pool::by_page},
    {"i256_decode", {32, 2, 64, 256, 128}, kLengths, 1, 64},
    {"i256_decode_192", {16, 2, 64, 256, 64}, kLengths, 1, 192, Pool::by_row},
    {"i256_chunk", {64, 4, 64, 256, 64}, {1500, 0, 129, 700}, 300, 64, Pool::by_row},
    {"i256_chunk_128", {32, 8, 64, 256, 128}, {1500, 0, 129, 700}, 300, 128, Pool::by_page},
};

class TunedPages : public testing::TestWithParam<std::tuple<PagedShape, Element>> {
protected:
    void SetUp() override {
        MSA_SKIP_UNLESS_USABLE("cuda");
        backend_ = make_backend("cuda");
        const PagedShape& shape = std::get<0>(GetParam());
        std::vector<int64_t> cu_q{0}, cu_k{0};
        for (int64_t n : shape.keys) {
            cu_q.push_back(cu_q.back() + std::min(n, shape.most_queries));
            cu_k.push_back(cu_k.back() + n);
        }
        case_ = make_case(shape.name, shape.sizes, cu_q, cu_k, {.top_k = 5});
        o_ = make_operands(case_, element());
        pages_ = 3;
        for (int64_t n : shape.keys) pages_ += ceil_div(n, shape.page_size);
        if (pages_ % 7 == 0) ++pages_;
        table_ = make_table(case_.problem, shape.page_size, 0, pages_);
        table_here_ = backend_->upload(table_.view());
    }
    Element element() const { return std::get<1>(GetParam()); }
    const Problem& problem() const { return case_.problem; }
    template <int Rank>
    InPages<Rank> paged(const Tensor<float, Rank>& keys, int64_t half) {
        return paged(keys, half, element());
    }
    template <int Rank>
    InPages<Rank> paged(const Tensor<float, Rank>& keys, int64_t half, Element in,
                        float unused = std::numeric_limits<float>::quiet_NaN()) {
        const PagedShape& shape = std::get<0>(GetParam());
        return {*backend_,
                in,
                problem(),
                keys.view(),
                table_.view(),
                table_here_.view(),
                shape.page_size,
                Rank == 3 ? shape.how : Pool::apart,
                half,
                pages_,
                unused};
    }

    struct Answer {
        Tensor<int32_t, 3> ids;
        std::string by;
    };
    Answer select(const Keys<2>& index_k) {
        const Uploaded<3> index_q(*backend_, index_k.element(), o_.index_q);
        auto ids = backend_->make<int32_t, 3>({problem().queries(), problem().kv_heads, 5});
        backend_->index_select(problem(), case_.rule, {index_q, index_k}, ids);
        const std::string by = backend_->answered_by();
        return {backend_->download(ids.view()), by};
    }
    Attention attend(const Keys<3>& k, const Keys<3>& v, View<const int32_t, 3> ids,
                     LoopOrder order, std::string& by) {
        const Uploaded<3> q(*backend_, element(), o_.q);
        const Tensor<int32_t, 3> ids_here = backend_->upload(ids);
        Tensor<float, 3> poison(o_.q.shape());
        std::fill_n(poison.data(), poison.size(), std::numeric_limits<float>::quiet_NaN());
        Uploaded<3> out(*backend_, element(), poison);
        auto lse = backend_->make<float, 2>({problem().queries(), problem().query_heads});
        backend_->sparse_attention(problem(), {q, k, v}, ids_here, {out, lse}, order);
        by = backend_->answered_by();
        return {out.download(), backend_->download(lse.view())};
    }

    std::unique_ptr<Backend> backend_;
    Case case_;
    Operands o_;
    int64_t pages_ = 0;
    Tensor<int32_t, 2> table_, table_here_;
};
INSTANTIATE_TEST_SUITE_P(All, TunedPages,
                         testing::Combine(testing::ValuesIn(kShapes),
                                          testing::Values(Element::bf16, Element::f16)),
                         [](const auto& of) {
                             return concat(std::get<0>(of.param).name, '_',
                                           to_string(std::get<1>(of.param)));
                         });

TEST_P(TunedPages, SelectWhatPackedKeysSelect) {
    for (const Element in : {element(), Element::e4m3}) {
        SCOPED_TRACE(to_string(in));
        const Answer want = select(Uploaded<2>(*backend_, in, o_.index_k));
        if (!want.by.starts_with("index_select_sm90")) GTEST_SKIP() << want.by;
        const InPages<2> pages = paged(o_.index_k, 0, in);
        const Answer got = select(pages.keys());
        EXPECT_EQ(got.by, want.by);
        EXPECT_TRUE(identical(got.ids, want.ids));
    }
}

/// Where an unused row of keys is NaN, a query that does not select its sequence's last block, but
/// whose tile does, is computed again by the plain kernel (docs/kernels.md), which rounds
/// otherwise.
TEST_P(TunedPages, AttendAsToPackedKeys) {
    const Uploaded<3> k(*backend_, element(), o_.k), v(*backend_, element(), o_.v);
    const Tensor<int32_t, 3> ids = reference().index_select(problem(), case_.rule, o_);
    Bounds apart = half_bounds(problem(), o_);
    apart.out *= 2, apart.lse *= 2;
    for (const LoopOrder order :
         {LoopOrder::automatic, LoopOrder::tile_union, LoopOrder::kv_outer}) {
        SCOPED_TRACE(to_string(order));
        std::string packed_by, paged_by;
        const auto supported = backend_->supports(
            problem(), SparseAttentionRequest{.element = element(),
                                              .top_k = 5,
                                              .order = order,
                                              .out = element(),
                                              .page_size = std::get<0>(GetParam()).page_size});
        if (!supported.yes) GTEST_SKIP() << supported.why_not;
        const Attention want = attend(k, v, ids, order, packed_by);
        if (!packed_by.starts_with("sparse_attention_sm90")) GTEST_SKIP() << packed_by;
        for (const float unused : {2.0F, std::numeric_limits<float>::quiet_NaN()}) {
            SCOPED_TRACE(unused);
            const InPages<3> k_pages = paged(o_.k, 0, element(), unused),
                             v_pages = paged(o_.v, 1, element(), unused);
            const Attention got = attend(k_pages.keys(), v_pages.keys(), ids, order, paged_by);
            EXPECT_EQ(paged_by, packed_by);
            EXPECT_TRUE(matches(got, want, apart));
            if (std::isnan(unused)) continue;
            EXPECT_TRUE(identical(got.out, want.out));
            EXPECT_TRUE(identical(got.lse, want.lse));
        }
    }
}

/// What a table names outside of the pool reads as zeros: so it is for the last of a sequence's
/// pages, whose keys then weigh exp(0) each.
TEST_P(TunedPages, NothingOutsideOfThePoolIsRead) {
    const int64_t page_size = std::get<0>(GetParam()).page_size;
    Operands zeros = make_operands(case_, element());
    const auto clear = [&](auto& keys) {
        const int64_t row = keys.size() / keys.extent(0);
        const std::vector<int64_t>& starts = problem().batch.cu_seqlens_k();
        const int64_t begin = (starts[1] - 1) / page_size * page_size;
        std::fill_n(keys.data() + begin * row, (starts[1] - begin) * row, 0.0F);
    };
    clear(zeros.k);
    clear(zeros.v);
    const InPages<3> k_pages = paged(o_.k, 0), v_pages = paged(o_.v, 1);
    for (const int32_t outside : {int32_t{-5}, static_cast<int32_t>(pages_), int32_t{1} << 30}) {
        Tensor<int32_t, 2> table = backend_->download(table_here_.view());
        const int64_t last = ceil_div(std::get<0>(GetParam()).keys[0], page_size) - 1;
        table(0, last) = outside;
        backend_->copy(table_here_.data(), backend_->space(), table.data(), Space::host,
                       table.size() * int64_t{sizeof(int32_t)});
        const Tensor<int32_t, 3> ids = reference().index_select(problem(), case_.rule, o_);
        std::string by;
        const Attention got = attend(k_pages.keys(), v_pages.keys(), ids, LoopOrder::automatic, by);
        const Attention want =
            attend(Uploaded<3>(*backend_, element(), zeros.k),
                   Uploaded<3>(*backend_, element(), zeros.v), ids, LoopOrder::automatic, by);
        if (!by.starts_with("sparse_attention_sm90")) GTEST_SKIP() << by;
        EXPECT_TRUE(identical(got.out, want.out)) << outside;
        EXPECT_TRUE(identical(got.lse, want.lse)) << outside;
    }
}

/// A captured step follows the table and the pool as they are when it is replayed.
TEST_P(TunedPages, AGraphFollowsTheTable) {
    if (std::get<0>(GetParam()).most_queries > 8) GTEST_SKIP() << "a chunk is not captured";
    const Uploaded<3> q(*backend_, element(), o_.q), index_q(*backend_, element(), o_.index_q);
    const InPages<3> k = paged(o_.k, 0), v = paged(o_.v, 1);
    const InPages<2> index_k = paged(o_.index_k, 0);
    auto ids = backend_->make<int32_t, 3>({problem().queries(), problem().kv_heads, 5});
    Uploaded<3> out(*backend_, element(), o_.q);
    auto lse = backend_->make<float, 2>({problem().queries(), problem().query_heads});
    const auto step = [&] {
        backend_->index_select(problem(), case_.rule, {index_q, index_k.keys()}, ids);
        backend_->sparse_attention(problem(), {q, k.keys(), v.keys()}, ids, {out, lse});
    };
    step();
    if (!backend_->answered_by().starts_with("sparse_attention_sm90"))
        GTEST_SKIP() << backend_->answered_by();
    const std::function<void()> again = backend_->make_graph(step);
    // The longest sequence's first two pages change places.
    Tensor<int32_t, 2> table = backend_->download(table_here_.view());
    const int64_t longest =
        std::max_element(std::get<0>(GetParam()).keys.begin(), std::get<0>(GetParam()).keys.end()) -
        std::get<0>(GetParam()).keys.begin();
    std::swap(table(longest, 0), table(longest, 1));
    backend_->copy(table_here_.data(), backend_->space(), table.data(), Space::host,
                   table.size() * int64_t{sizeof(int32_t)});
    step();
    const Tensor<int32_t, 3> want_ids = backend_->download(ids.view());
    const Tensor<float, 3> want = out.download();
    out.assign(o_.q.view());
    again();
    EXPECT_TRUE(identical(backend_->download(ids.view()), want_ids));
    EXPECT_TRUE(identical(out.download(), want));
}

}  // namespace
}  // namespace msa::test
