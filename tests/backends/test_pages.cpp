// SPDX-License-Identifier: MIT
// Keys in the pages of a cache: every operation gives what it gives for the same keys packed.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "tests/support/compare.h"
#include "tests/support/pages.h"
#include "tests/support/refusal.h"
#include "tests/support/runner.h"
#include "tests/support/scaled.h"
#include "tests/support/uploaded.h"
#include "tests/support/values.h"

namespace msa::test {
namespace {

/// What each operation gives for these keys.
struct Results {
    Tensor<float, 3> scores;
    Tensor<int32_t, 3> ids;
    Tensor<float, 2> index_lse;
    std::vector<Attention> attention;  // dense, then sparse in each order
    Tensor<float, 3> mass, max_logit;
};

Results run(Runner& runner, const Case& c, const Operands& o, const Keys<3>& k, const Keys<3>& v,
            const Keys<2>& index_k) {
    const Problem& p = c.problem;
    Backend& b = runner.backend();
    const Uploaded<3> q(b, runner.element(), o.q), index_q(b, runner.element(), o.index_q);
    Results got;
    const Shape<3> blocks{p.queries(), p.kv_heads, p.blocks()};
    Tensor<float, 3> scores = b.make<float, 3>(blocks), mass = b.make<float, 3>(blocks),
                     top = b.make<float, 3>(blocks);
    b.index_scores(p, {index_q, index_k}, scores);
    Tensor<int32_t, 3> ids = b.make<int32_t, 3>({p.queries(), p.kv_heads, c.rule.top_k});
    Tensor<float, 2> index_lse = b.make<float, 2>({p.queries(), p.kv_heads});
    b.index_select(p, c.rule, {index_q, index_k}, ids, index_lse);
    b.block_mass(p, {q, k}, {mass, top});
    const auto keep = [&](const auto& call) {
        Tensor<float, 3> out = b.make<float, 3>(o.q.shape());
        Tensor<float, 2> lse = b.make<float, 2>({p.queries(), p.query_heads});
        call(AttentionInput{q, k, v}, AttentionOutput{out.view(), lse});
        got.attention.push_back({b.download(out.view()), b.download(lse.view())});
    };
    keep(
        [&](const AttentionInput& in, const AttentionOutput& to) { b.dense_attention(p, in, to); });
    for (LoopOrder order : orders_of(
             b, p,
             {.element = runner.element(), .top_k = c.rule.top_k, .page_size = k.page_size()}))
        keep([&](const AttentionInput& in, const AttentionOutput& to) {
            b.sparse_attention(p, in, ids, to, order);
        });
    got.scores = b.download(scores.view());
    got.ids = b.download(ids.view());
    got.index_lse = b.download(index_lse.view());
    got.mass = b.download(mass.view());
    got.max_logit = b.download(top.view());
    return got;
}

void expect_same(const Results& got, const Results& want) {
    EXPECT_TRUE(identical(got.scores, want.scores));
    EXPECT_TRUE(identical(got.ids, want.ids));
    EXPECT_TRUE(identical(got.index_lse, want.index_lse));
    EXPECT_TRUE(identical(got.mass, want.mass));
    EXPECT_TRUE(identical(got.max_logit, want.max_logit));
    ASSERT_EQ(got.attention.size(), want.attention.size());
    for (size_t n = 0; n < got.attention.size(); ++n) {
        EXPECT_TRUE(identical(got.attention[n].out, want.attention[n].out)) << "attention " << n;
        EXPECT_TRUE(identical(got.attention[n].lse, want.attention[n].lse)) << "attention " << n;
    }
}

class Pages : public SubjectTest {
protected:
    void SetUp() override {
        const Support taken = runner_.backend().supports(
            square_problem(16, 2, 1, 16, 16, 8),
            IndexSelectRequest{.element = GetParam().element, .top_k = 2, .page_size = 8});
        if (!taken.yes) GTEST_SKIP() << taken.why_not;
    }
    Runner runner_{GetParam()};

    void expect_as_packed(const Case& c, int64_t page_size, Pool how, int64_t shared = 0) {
        const Problem& p = c.problem;
        Operands o = make_operands(c, GetParam().element);
        for (int64_t s = 1; s < p.sequences() && shared > 0; ++s) {
            const auto again = [&](auto& keys) {  // the first tokens are those of sequence 0
                const int64_t row = keys.size() / keys.extent(0);
                std::copy_n(keys.data(), shared * row,
                            keys.data() + p.batch.cu_seqlens_k()[static_cast<size_t>(s)] * row);
            };
            again(o.k);
            again(o.v);
            again(o.index_k);
        }
        Backend& b = runner_.backend();
        const Element element = GetParam().element;
        const Tensor<int32_t, 2> table = make_table(p, page_size, shared);
        const Tensor<int32_t, 2> table_here = b.upload(table.view());
        const auto pages = [&]<int Rank>(const Tensor<float, Rank>& keys, int64_t half) {
            return InPages<Rank>(b, element, p, keys.view(), table.view(), table_here.view(),
                                 page_size, Rank == 3 ? how : Pool::apart, half);
        };
        const Uploaded<3> k(b, element, o.k), v(b, element, o.v);
        const Uploaded<2> index_k(b, element, o.index_k);
        SCOPED_TRACE(concat("pages of ", page_size, ", pool ", static_cast<int>(how)));
        const Results want = run(runner_, c, o, k, v, index_k);
        expect_same(run(runner_, c, o, pages(o.k, 0).keys(), pages(o.v, 1).keys(),
                        pages(o.index_k, 0).keys()),
                    want);
    }
};
MSA_FOR_ALL_SUBJECTS(Pages);

/// One query, a chunk, or all of sequences of these lengths.
Case lengths(const std::string& name, std::vector<int64_t> keys, int64_t most_queries,
             int64_t block_size, Values values = Values::ternary) {
    std::vector<int64_t> cu_q{0}, cu_k{0};
    for (int64_t n : keys) {
        cu_q.push_back(cu_q.back() + std::min(n, most_queries));
        cu_k.push_back(cu_k.back() + n);
    }
    Case c = make_case(name, {4, 2, 32, 16, block_size}, cu_q, cu_k, {.top_k = 4});
    c.values = values;
    return c;
}

TEST_P(Pages, DecodeAndChunksGiveWhatPackedKeysGive) {
    for (const int64_t queries : {1, 5})
        for (const auto& [page_size, how] :
             {std::pair{128, Pool::apart}, {256, Pool::by_page}, {64, Pool::by_row}})
            expect_as_packed(lengths("lengths", {127, 0, 1, 4173, 128, 129}, queries, 128),
                             page_size, how);
}

TEST_P(Pages, PrefillGivesWhatPackedKeysGive) {
    expect_as_packed(lengths("prefill", {129, 0, 1, 65}, 1000, 16), 64, Pool::by_row);
    expect_as_packed(lengths("prefill", {129, 0, 1, 65}, 1000, 16, Values::normal), 8, Pool::apart);
}

TEST_P(Pages, SequencesShareAPrefix) {
    expect_as_packed(lengths("shared", {200, 129, 160}, 3, 16), 32, Pool::by_page, 128);
}

TEST_P(Pages, WindowCapAndSinksApplyToPages) {
    Case c = lengths("own", {100, 37}, 9, 8, Values::normal);
    c.problem.window = 30;
    c.problem.softcap = 5;
    expect_as_packed(c, 16, Pool::apart);
}

/// A sequence's own tokens go where its keys are read, in every way that K and V share pages.
TEST_P(Pages, AppendedRowsAreKeys) {
    for (const std::pair<int, Pool>& layout :
         {std::pair{16, Pool::apart}, {32, Pool::by_page}, {8, Pool::by_row}}) {
        const int page_size = layout.first;
        const Pool how = layout.second;
        const Case c = lengths("appended", {40, 0, 1, 129, 16}, 1000, 16);
        const Operands o = make_operands(c, GetParam().element);
        Backend& b = runner_.backend();
        const Element element = GetParam().element;
        const Tensor<int32_t, 2> table = make_table(c.problem, page_size);
        const Tensor<int32_t, 2> table_here = b.upload(table.view());
        const auto pages = [&]<int Rank>(const Tensor<float, Rank>& keys, int64_t half) {
            return InPages<Rank>(b, element, c.problem, keys.view(), table.view(),
                                 table_here.view(), page_size, Rank == 3 ? how : Pool::apart, half);
        };
        const Uploaded<3> k(b, element, o.k), v(b, element, o.v);
        const Uploaded<2> index_k(b, element, o.index_k);
        const InPages<3> to_k = pages(Tensor<float, 3>(o.k.shape()), 0),
                         to_v = pages(Tensor<float, 3>(o.v.shape()), 1);
        const InPages<2> to_index = pages(Tensor<float, 2>(o.index_k.shape()), 0);
        b.append(c.problem, k, to_k.keys());
        b.append(c.problem, v, to_v.keys());
        const Keys<2> index = to_index.keys();
        const int64_t width = index.shape()[1];
        b.append(
            c.problem, In<3>{index_k.data(), {c.problem.keys(), 1, width}, element, b.space()},
            Keys<3>{In<4>{index.data(), {index.pages(), page_size, 1, width}, element, b.space()},
                    table_here.view(),
                    {index.strides()[0], index.strides()[1], width}});
        SCOPED_TRACE(page_size);
        expect_same(run(runner_, c, o, to_k.keys(), to_v.keys(), index),
                    run(runner_, c, o, k, v, index_k));
    }
}

TEST_P(Pages, GrowByATokenAtATime) {
    constexpr int64_t kSteps = 300;
    const auto growth = [](int64_t tokens) {
        Case c = lengths("growth", {tokens, tokens + 7}, 1, 8);
        c.problem.query_heads = 2;
        c.problem.kv_heads = 1;
        c.problem.head_dim = 16;
        return c;
    };
    const Case all = growth(kSteps);
    const Operands o = make_operands(all, GetParam().element);
    Runner runner(GetParam(), 1);
    Backend& b = runner.backend();
    for (int64_t step = 1; step <= kSteps; step += step < 40 ? 1 : 13) {
        const Case c = growth(step);
        Operands here = with_queries(o, {0, 2});
        const auto cut = [&](auto& keys, const auto& from) {
            const int64_t row = from.size() / from.extent(0);
            auto shape = from.shape();
            shape[0] = c.problem.keys();
            keys = std::remove_cvref_t<decltype(keys)>(shape);
            std::copy_n(from.data(), step * row, keys.data());
            std::copy_n(from.data() + kSteps * row, (step + 7) * row, keys.data() + step * row);
        };
        cut(here.k, o.k);
        cut(here.v, o.v);
        cut(here.index_k, o.index_k);
        const Tensor<int32_t, 2> table = make_table(all.problem, 16);
        const Tensor<int32_t, 2> table_here = b.upload(table.view());
        const auto pages = [&]<int Rank>(const Tensor<float, Rank>& keys) {
            return InPages<Rank>(b, GetParam().element, c.problem, keys.view(), table.view(),
                                 table_here.view(), 16);
        };
        const InPages<3> k = pages(here.k), v = pages(here.v);
        const InPages<2> index_k = pages(here.index_k);
        const Uploaded<3> packed_k(b, GetParam().element, here.k),
            packed_v(b, GetParam().element, here.v);
        const Uploaded<2> packed_index(b, GetParam().element, here.index_k);
        SCOPED_TRACE(step);
        expect_same(run(runner, c, here, k.keys(), v.keys(), index_k.keys()),
                    run(runner, c, here, packed_k, packed_v, packed_index));
    }
}

/// Host backends look at the table's entries.
class PagesRefused : public testing::Test {
protected:
    Problem p_ = lengths("refused", {20, 9}, 1, 8).problem;
    Tensor<float, 3> index_q_{{2, 2, 16}}, pool_{{4, 16, 16}};
    Tensor<int32_t, 2> table_ = tensor<int32_t, 2>({2, 2}, {1, 3, 0, -1});
    std::unique_ptr<Backend> cpu_ = make_backend("cpu");

    std::string refused(const Keys<2>& index_k) {
        Tensor<float, 3> scores({2, 2, p_.blocks()});
        return refusal([&] { cpu_->index_scores(p_, {index_q_, index_k}, scores); });
    }
    std::string refused() { return refused({pool_, table_}); }
};

TEST_F(PagesRefused, BadTablesNameSequencePageAndRule) {
    EXPECT_EQ(refused(), "");
    table_(0, 1) = 1;
    EXPECT_EQ(
        refused(),
        "page_table[0, 1] of index_k is 1, which sequence 0 has already; its pages must differ");
    table_(0, 1) = 4;
    EXPECT_EQ(refused(), "page_table[0, 1] of index_k is 4, must be a page of the pool's 4");
    table_(0, 1) = 0;   // sequence 1 has it, too: a shared prefix
    table_(1, 1) = -7;  // behind its last page
    EXPECT_EQ(refused(), "");
    table_(1, 0) = -1;
    EXPECT_EQ(refused(), "page_table[1, 0] of index_k is -1, must be a page of the pool's 4");
}

TEST_F(PagesRefused, LengthsAndSizesThatDoNotFit) {
    EXPECT_EQ(refused({pool_, table_.view().slice(0, 1)}),
              "page_table of index_k has 1 rows, must have one for each sequence = 2");
    const Tensor<int32_t, 2> narrow({2, 1});
    EXPECT_EQ(
        refused({pool_, narrow}),
        "seqused_k of sequence 0 is 20, but its row of index_k's page_table has 1 pages of 16 "
        "tokens");
    const Tensor<float, 3> twelve({8, 12, 16});
    EXPECT_EQ(refused({twelve, table_}),
              "index_k has pages of 12 tokens, but blocks have 8; one must be a multiple of the "
              "other");
    const Tensor<float, 3> wide({4, 16, 32});
    EXPECT_EQ(refused({wide, table_}),
              "index_k has shape [64, 32], must be [pages * page_size, didx] = [64, 16]");
    const Tensor<float, 3> empty({4, 0, 16});
    EXPECT_EQ(refusal([&] { Keys<2>(In<3>(empty), table_.view()); }),
              "page_size is 0, must be at least 1");
}

TEST_F(PagesRefused, GradientsAndTheLossTakePackedKeys) {
    const Tensor<float, 4> pool({4, 16, 2, 32});
    const Tensor<float, 3> q({2, 4, 32}), packed({29, 2, 32});
    const Tensor<float, 2> lse({2, 4});
    const Tensor<int32_t, 3> ids({2, 2, 1});
    Tensor<float, 3> d_q(q.shape()), d_k(packed.shape()), d_v(packed.shape());
    const Keys<3> pages{pool, table_};
    EXPECT_EQ(
        refusal([&] {
            cpu_->sparse_attention_grad(p_, {q, pages, pages}, ids, {q, lse, q}, {d_q, d_k, d_v});
        }),
        "k is in pages, must be packed");
    Tensor<double, 2> kl({2, 2});
    EXPECT_EQ(refusal([&] {
                  cpu_->index_kl(p_, {{index_q_, {pool_, table_}}, q, packed, {}}, {kl, {}, {}});
              }),
              "index_k is in pages, must be packed");
    Tensor<float, 3> out(q.shape());
    Tensor<float, 2> to({2, 4});
    EXPECT_EQ(refusal([&] {
                  cpu_->dense_attention(p_, {q, pages, packed}, {out.view(), to});
              }),
              "v has pages of 0 tokens, must have those of k = 16; 0: packed");
}

class PagesOfEightBits : public testing::TestWithParam<const char*> {
protected:
    void SetUp() override { MSA_SKIP_UNLESS_USABLE(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(All, PagesOfEightBits, testing::Values("reference", "cpu", "cuda"));

/// A page is a block: so a pool's scales are those of its blocks.
TEST_P(PagesOfEightBits, GiveWhatPackedKeysGive) {
    const Case c = lengths("scaled", {70, 0, 33}, 3, 16, Values::normal);
    const Problem& p = c.problem;
    const Operands o = make_operands(c, Element::f32);
    const ScaledIndex index = store_index(p, o);
    const ScaledOperands main = store_scaled(p, o, false);
    const Tensor<int32_t, 2> table = make_table(p, 16);
    const auto pool_of = [&](const auto& stored) {
        using Stored = std::remove_cvref_t<decltype(stored.values(0, 0, 0))>;
        const int64_t heads = stored.values.extent(1), width = stored.values.extent(2);
        std::pair made{Tensor<Stored, 4>({kPages, 16, heads, width}),
                       Tensor<float, 2>({kPages, heads})};
        std::fill_n(made.second.data(), made.second.size(), 1.0F);
        const std::vector<int64_t> blocks = block_starts(p);
        for (int64_t s = 0; s < p.sequences(); ++s) {
            const auto at = static_cast<size_t>(s);
            const int64_t first = p.batch.cu_seqlens_k()[at];
            for (int64_t t = first; t < p.batch.cu_seqlens_k()[at + 1]; ++t)
                std::copy_n(stored.values.view()[t].data(), heads * width,
                            made.first.view()[table(s, (t - first) / 16)][(t - first) % 16].data());
            for (int64_t b = blocks[at]; b < blocks[at + 1]; ++b)
                std::copy_n(stored.scales.view()[b].data(), heads,
                            made.second.view()[table(s, b - blocks[at])].data());
        }
        return made;
    };
    const std::unique_ptr<Backend> backend = make_backend(GetParam());
    const auto put = [&](const auto& tensor) { return backend->upload(tensor.view()); };
    const auto put_both = [&](const auto& operand) {
        return std::pair(put(operand.first), put(operand.second));
    };
    const auto table_here = put(table);
    const auto index_pool = put_both(pool_of(index.k));
    const View<const Int8, 3> index_pages(index_pool.first.data(), {kPages, 16, p.index_dim},
                                          backend->space());
    const auto k = put_both(pool_of(main.k)), v = put_both(pool_of(main.v));
    const auto index_q = put(index.q.values);
    const auto q = put(main.q.values);
    const auto of_index_q = put(index.q.scales), of_q = put(main.q.scales);

    auto ids_here = backend->make<int32_t, 3>({p.queries(), p.kv_heads, 4});
    backend->index_select(p, c.rule,
                          {index_q, {index_pages, table_here}, {of_index_q, index_pool.second, {}}},
                          ids_here);
    const Tensor<int32_t, 3> ids = backend->download(ids_here.view());
    EXPECT_TRUE(identical(ids, index_select(*backend, p, c.rule, index)));
    auto out = backend->make<float, 3>(o.q.shape());
    auto lse = backend->make<float, 2>({p.queries(), p.query_heads});
    backend->sparse_attention(
        p, {q, {k.first, table_here}, {v.first, table_here}, {}, {of_q, k.second, v.second}},
        ids_here, {out.view(), lse});
    const Attention want =
        sparse_attention(*backend, p, main, ids, LoopOrder::automatic, Element::f32);
    EXPECT_TRUE(identical(backend->download(out.view()), want.out));
    EXPECT_TRUE(identical(backend->download(lse.view()), want.lse));
}

}  // namespace
}  // namespace msa::test
