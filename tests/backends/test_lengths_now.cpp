// SPDX-License-Identifier: MIT
// Lengths on the device (Keys::seqused_k): a call, and a graph captured once, give at all lengths
// up to the batch's what calls with these lengths on the host give, bit for bit.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/random.h"
#include "tests/support/compare.h"
#include "tests/support/pages.h"
#include "tests/support/refusal.h"
#include "tests/support/runner.h"
#include "tests/support/values.h"

namespace msa::test {
namespace {

struct ServedStep {
    const char* name;
    Sizes sizes;
    int64_t sequences, queries, most, page_size;
    Pool how = Pool::apart;
    Element element = Element::bf16;
};
std::ostream& operator<<(std::ostream& out, const ServedStep& s) { return out << s.name; }

constexpr Sizes kPaperSizes{64, 4, 128, 128, 128}, kSmallSizes{8, 2, 64, 64, 64};
constexpr Sizes kLongRows{4, 1, 64, 64, 32};  // of more blocks than scores are kept of
const ServedStep kServedSteps[] = {
    {"decode", kPaperSizes, 7, 1, 4400, 128},
    {"decode_by_2", kPaperSizes, 20, 1, 4400, 128},  // thread blocks of a cluster
    {"decode_64", kPaperSizes, 7, 1, 4400, 64, Pool::by_row, Element::f16},
    {"decode_192", kSmallSizes, 7, 1, 4400, 192, Pool::by_page},
    {"decode_of_one_part", kSmallSizes, 7, 1, 570, 64},
    {"decode_by_lists", kLongRows, 3, 1, 66000, 64},
    {"decode_of_many", kSmallSizes, 300, 1, 4400, 64},
    {"drafts", kPaperSizes, 7, 8, 4400, 128, Pool::by_row},
    {"few_drafts", kSmallSizes, 3, 5, 4400, 64},
    {"chunks", kSmallSizes, 3, 70, 4400, 64},
    {"h96_decode", {32, 2, 96, 64, 128}, 7, 1, 4400, 128},
    {"h192_chunks", {8, 2, 192, 64, 64}, 3, 70, 4400, 64},
    {"i256_decode", {8, 2, 64, 256, 128}, 7, 1, 4400, 128},
    {"i256_chunks", {8, 2, 64, 256, 64}, 3, 70, 4400, 64},
    {"chunks_of_tiles", kPaperSizes, 2, 171, 4400, 128, Pool::by_row},
    {"chunks_of_many", kSmallSizes, 70, 40, 4400, 64},
    {"chunks_by_lists", kLongRows, 2, 300, 66000, 64},
    {"other_pages", kSmallSizes, 4, 3, 4400, 32},  // plain kernels
};

class LengthsNow : public testing::TestWithParam<ServedStep> {
protected:
    static constexpr int64_t kTopK = 5;
    static const ServedStep& step() { return GetParam(); }

    void SetUp() override {
        MSA_SKIP_UNLESS_USABLE("cuda");
        backend_ = make_backend("cuda");
        // One pool for all sequences, each of which has its pages in an order of its own.
        pages_ = 3 * ceil_div(step().most, step().page_size);
        const int64_t queries = step().sequences * step().queries;
        case_ = make_case(step().name, step().sizes, {0, queries}, {0, pages_ * step().page_size},
                          {.top_k = kTopK});
        case_.values = Values::ternary;  // many ties
        operands_ = make_operands(case_, step().element);
        table_here_ = backend_->make<int32_t, 2>(
            {step().sequences, ceil_div(step().most, step().page_size) + 1});
        lengths_here_ = backend_->make<int32_t, 1>({step().sequences});
        deal_pages(0);
        k_ = pool(operands_.k, 0);
        v_ = pool(operands_.v, 1);
        index_k_ = pool(operands_.index_k, 0);
        q_ = {*backend_, step().element, operands_.q};
        index_q_ = {*backend_, step().element, operands_.index_q};
        ids_ = backend_->make<int32_t, 3>({queries, step().sizes.kv_heads, kTopK});
        out_ = {*backend_, step().element, operands_.q};
        lse_ = backend_->make<float, 2>({queries, step().sizes.query_heads});
        most_ = at(std::vector<int64_t>(static_cast<size_t>(step().sequences), step().most));
    }
    template <int Rank>
    std::unique_ptr<InPages<Rank>> pool(const Tensor<float, Rank>& keys, int64_t half) {
        Tensor<int32_t, 2> in_order({1, pages_});
        for (int64_t n = 0; n < pages_; ++n) in_order(0, n) = static_cast<int32_t>(n);
        return std::make_unique<InPages<Rank>>(*backend_, step().element, case_.problem,
                                               keys.view(), in_order.view(), table_here_.view(),
                                               step().page_size,
                                               Rank == 3 ? step().how : Pool::apart, half, pages_);
    }
    template <typename T, int Rank>
    void put(const Tensor<T, Rank>& from, Tensor<T, Rank>& to) {
        backend_->copy(to.data(), backend_->space(), from.data(), Space::host,
                       from.size() * int64_t{sizeof(T)});
    }
    /// Other pages for every sequence; none behind its last one.
    void deal_pages(int64_t draw) {
        Tensor<int32_t, 2> table(table_here_.shape());
        std::fill_n(table.data(), table.size(), -1);
        std::vector<int32_t> order(static_cast<size_t>(pages_));
        for (int64_t s = 0; s < step().sequences; ++s) {
            for (int32_t n = 0; n < pages_; ++n) order[static_cast<size_t>(n)] = n;
            for (int64_t n = 0; n + 1 < table.extent(1); ++n) {
                const auto rest = static_cast<uint64_t>(pages_ - n);
                std::swap(order[static_cast<size_t>(n)],
                          order[static_cast<size_t>(n) + mix(17, draw, s, n) % rest]);
                table(s, n) = order[static_cast<size_t>(n)];
            }
        }
        put(table, table_here_);
    }
    /// The problem of sequences of these lengths.
    Problem at(const std::vector<int64_t>& lengths) const {
        std::vector<int64_t> cu_q{0}, cu_k{0};
        for (const int64_t n : lengths) {
            cu_q.push_back(cu_q.back() + step().queries);
            cu_k.push_back(cu_k.back() + n);
        }
        Problem p = case_.problem;
        p.batch = PackedBatch(cu_q, cu_k);
        return p;
    }
    void put_lengths(const std::vector<int64_t>& lengths) {
        Tensor<int32_t, 1> values({step().sequences});
        std::transform(lengths.begin(), lengths.end(), values.data(),
                       [](int64_t n) { return static_cast<int32_t>(n); });
        put(values, lengths_here_);
    }
    template <int Rank>
    Keys<Rank> now(const InPages<Rank>& keys) const {
        return keys.keys().with_lengths(lengths_here_.view());
    }
    /// A chunk is in one order of sums at all lengths if all its blocks are in unions.
    LoopOrder order() const {
        const Support unions =
            backend_->supports(most_, SparseAttentionRequest{.element = step().element,
                                                             .top_k = kTopK,
                                                             .order = LoopOrder::tile_union,
                                                             .out = step().element,
                                                             .page_size = step().page_size});
        return step().queries > 8 && unions.yes ? LoopOrder::tile_union : LoopOrder::automatic;
    }
    void run(const Problem& p, const Keys<3>& k, const Keys<3>& v, const Keys<2>& index_k) {
        backend_->index_select(p, case_.rule, {index_q_, index_k}, ids_);
        selected_by_ = backend_->answered_by();
        backend_->sparse_attention(p, {q_, k, v}, ids_, {out_, lse_}, order());
    }
    void run_now() { run(most_, now(*k_), now(*v_), now(*index_k_)); }
    void run_at(const std::vector<int64_t>& lengths) {
        run(at(lengths), k_->keys(), v_->keys(), index_k_->keys());
    }

    struct Results {
        Tensor<int32_t, 3> ids;
        Attention attention;
    };
    Results results() const {
        return {backend_->download(ids_.view()),
                {out_.download(), backend_->download(lse_.view())}};
    }
    void poison() {
        Tensor<float, 3> nan(operands_.q.shape());
        std::fill_n(nan.data(), nan.size(), std::numeric_limits<float>::quiet_NaN());
        out_.assign(nan.view());
        put(filled_ids(), ids_);
    }
    Tensor<int32_t, 3> filled_ids() const {
        Tensor<int32_t, 3> ids(ids_.shape());
        std::fill_n(ids.data(), ids.size(), -7);
        return ids;
    }
    static void expect_same(const Results& got, const Results& want) {
        EXPECT_TRUE(identical(got.ids, want.ids));
        EXPECT_TRUE(identical(got.attention.out, want.attention.out));
        EXPECT_TRUE(identical(got.attention.lse, want.attention.lse));
    }
    std::vector<int64_t> drawn_lengths(int64_t draw) const {
        const int64_t edges[] = {0, 1, 127, 128, 129, 4173, step().most, 64, 63, 2};
        std::vector<int64_t> lengths;
        for (int64_t s = 0; s < step().sequences; ++s) {
            const uint64_t random = mix(23, draw, s);
            lengths.push_back(std::min(
                step().most, random % 3 == 0 ? static_cast<int64_t>(random / 3) % (step().most + 1)
                                             : edges[random / 3 % std::size(edges)]));
        }
        return lengths;
    }

    std::unique_ptr<Backend> backend_;
    int64_t pages_ = 0;
    Case case_;
    Problem most_;
    Operands operands_;
    std::unique_ptr<InPages<3>> k_, v_;
    std::unique_ptr<InPages<2>> index_k_;
    Uploaded<3> q_, index_q_, out_;
    Tensor<int32_t, 2> table_here_;
    Tensor<int32_t, 1> lengths_here_;
    Tensor<int32_t, 3> ids_;
    Tensor<float, 2> lse_;
    std::string selected_by_;
};
INSTANTIATE_TEST_SUITE_P(All, LengthsNow, testing::ValuesIn(kServedSteps),
                         [](const auto& of) { return std::string(of.param.name); });

TEST_P(LengthsNow, GiveWhatLengthsOnTheHostGive) {
    for (int64_t draw = 0; draw < 12; ++draw) {
        const std::vector<int64_t> lengths = drawn_lengths(draw);
        SCOPED_TRACE(draw);
        deal_pages(draw);
        run_at(lengths);
        const Results want = results();
        put_lengths(lengths);
        poison();
        run_now();
        expect_same(results(), want);
    }
}

TEST_P(LengthsNow, OutsideOfTheRangeCountAsTheNearest) {
    std::vector<int64_t> lengths = drawn_lengths(3), nearest = lengths;
    const int64_t outside[] = {-1, step().most + 1, INT32_MAX, INT32_MIN};
    for (size_t n = 0; n < lengths.size(); ++n) {
        lengths[n] = outside[n % std::size(outside)];
        nearest[n] = std::clamp<int64_t>(lengths[n], 0, step().most);
    }
    run_at(nearest);
    const Results want = results();
    put_lengths(lengths);
    poison();
    run_now();
    expect_same(results(), want);
}

/// Sequences grow by a token a step, end, and begin anew; pages change places.
TEST_P(LengthsNow, AGraphFollowsLengthsAndTables) {
    std::vector<int64_t> lengths(static_cast<size_t>(step().sequences));
    put_lengths(lengths);
    run_now();
    const bool tuned = backend_->answered_by().starts_with("sparse_attention_sm90");
    EXPECT_EQ(selected_by_.starts_with("index_select_sm90"), tuned) << selected_by_;
    if (!tuned) {
        EXPECT_THROW(backend_->make_graph([&] { run_now(); }), UnsupportedError);
        return;
    }
    const std::function<void()> again = backend_->make_graph([&] { run_now(); });
    for (int64_t replay = 0; replay < 300; ++replay) {
        SCOPED_TRACE(replay);
        if (replay % 60 == 0) lengths = drawn_lengths(replay);
        for (int64_t& n : lengths) n = std::min(n + (replay % 60 == 0 ? 0 : 1), step().most);
        if (replay % 50 == 0) deal_pages(replay);
        run_at(lengths);
        const Results want = results();
        put_lengths(lengths);
        poison();
        again();
        expect_same(results(), want);
        if (HasFailure()) return;
    }
}

TEST_P(LengthsNow, OtherOperationsFollowThem) {
    if (step().sequences > 10) GTEST_SKIP() << "few sequences tell as much";
    const std::vector<int64_t> lengths = drawn_lengths(5);
    const Problem exact = at(lengths);
    put_lengths(lengths);
    put(filled_ids(), ids_);
    backend_->dense_attention(exact, {q_, k_->keys(), v_->keys()}, {out_, lse_});
    const Results dense = results();
    poison();
    backend_->dense_attention(most_, {q_, now(*k_), now(*v_)}, {out_, lse_});
    expect_same(results(), dense);
    Tensor<float, 2> index_lse = backend_->make<float, 2>({exact.queries(), exact.kv_heads});
    backend_->index_select(exact, case_.rule, {index_q_, index_k_->keys()}, ids_, index_lse);
    const Tensor<float, 2> want = backend_->download(index_lse.view());
    backend_->index_select(most_, case_.rule, {index_q_, now(*index_k_)}, ids_, index_lse);
    EXPECT_TRUE(identical(backend_->download(index_lse.view()), want));
}

TEST_P(LengthsNow, AppendToTheirEnds) {
    if (step().sequences > 10) GTEST_SKIP() << "few sequences tell as much";
    const int64_t width = step().sizes.head_dim, heads = step().sizes.kv_heads;
    const std::vector<int64_t> lengths = drawn_lengths(7);
    Tensor<float, 3> rows({step().sequences * step().queries, heads, width});
    for (int64_t i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(i % 251);
    const Uploaded<3> rows_here(*backend_, step().element, rows);
    // No two sequences share a page, or the last one to write would be any.
    Tensor<int32_t, 2> own(table_here_.shape());
    for (int64_t i = 0; i < own.size(); ++i) own.data()[i] = static_cast<int32_t>(i);
    put(own, table_here_);
    const int64_t page = step().page_size * heads * width;
    Uploaded<1> pool(*backend_, step().element, Tensor<float, 1>({own.size() * page}));
    const Keys<3> to(In<4>{pool.data(),
                           {own.size(), step().page_size, heads, width},
                           step().element,
                           backend_->space()},
                     table_here_.view());
    const std::function<void()> again = backend_->make_graph(
        [&] { backend_->append(most_, rows_here, to.with_lengths(lengths_here_.view())); });
    pool.assign(Tensor<float, 1>({own.size() * page}).view());
    put_lengths(lengths);
    again();
    Tensor<float, 1> want({own.size() * page});
    for (int64_t s = 0; s < step().sequences; ++s)
        for (int64_t i = 0; i < step().queries; ++i) {
            const int64_t token = lengths[static_cast<size_t>(s)] - step().queries + i;
            if (token < 0) continue;
            std::copy_n(rows.view()[s * step().queries + i].data(), heads * width,
                        want.data() + (s * own.extent(1) + token / step().page_size) * page +
                            token % step().page_size * heads * width);
        }
    EXPECT_TRUE(identical(pool.download(), want));
}

/// One long sequence among short ones: thread blocks go where the keys are. Rows are too long for
/// scores to be kept, so lists are merged.
class LengthsNowOfUnlikeSequences : public testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Queries, LengthsNowOfUnlikeSequences, testing::Values(1, 40, 150));

TEST_P(LengthsNowOfUnlikeSequences, SelectAsOnTheHost) {
    MSA_SKIP_UNLESS_USABLE("cuda");
    // Of every third sequence; the others have one.
    const auto queries_of = [](int64_t s) { return s % 3 == 0 ? GetParam() : 1; };
    const std::unique_ptr<Backend> backend = make_backend("cuda");
    constexpr int64_t kPageSize = 128, kPool = 512, kMost = 400000, kSequences = 40;
    constexpr int64_t kWidth = 64, kGroups = 2;
    const int64_t row = kMost / kPageSize;
    int64_t query_count = 0;
    for (int64_t s = 0; s < kSequences; ++s) query_count += queries_of(s);
    Tensor<float, 3> keys({kPool, kPageSize, kWidth}), queries({query_count, kGroups, kWidth});
    for (int64_t i = 0; i < keys.size(); ++i)
        keys.data()[i] = static_cast<float>(mix(1, i) % 3) - 1;
    for (int64_t i = 0; i < queries.size(); ++i)
        queries.data()[i] = static_cast<float>(mix(2, i) % 3) - 1;
    Tensor<int32_t, 2> table({kSequences, row});
    for (int64_t i = 0; i < table.size(); ++i)
        table.data()[i] = static_cast<int32_t>(mix(3, i) % kPool);
    const Uploaded<3> pool(*backend, Element::bf16, keys), q(*backend, Element::bf16, queries);
    const Tensor<int32_t, 2> table_here = backend->upload(table.view());
    Tensor<int32_t, 1> lengths_here = backend->make<int32_t, 1>({kSequences});
    const Keys<2> pages(pool, table_here.view());
    Tensor<int32_t, 3> ids = backend->make<int32_t, 3>({query_count, kGroups, 16});
    const auto at = [&](const std::vector<int64_t>& lengths) {
        std::vector<int64_t> cu_q{0}, cu_k{0};
        for (const int64_t n : lengths) {
            cu_q.push_back(cu_q.back() + queries_of(std::ssize(cu_q) - 1));
            cu_k.push_back(cu_k.back() + n);
        }
        return make_case("unlike", {16, kGroups, 64, kWidth, 128}, cu_q, cu_k, {.top_k = 16})
            .problem;
    };
    const Problem most = at(std::vector<int64_t>(kSequences, row * kPageSize));
    const auto select = [&](const Problem& p, const Keys<2>& in) {
        backend->index_select(p, {.top_k = 16}, {q, in}, ids);
        return backend->download(ids.view());
    };
    for (int64_t draw = 0; draw < 8; ++draw) {
        std::vector<int64_t> lengths;
        Tensor<int32_t, 1> values({kSequences});
        for (int64_t s = 0; s < kSequences; ++s) {
            const auto random = static_cast<int64_t>(mix(4, draw, s) % 1000);
            lengths.push_back(s % 13 == draw ? row * kPageSize - random : 10 * random);
            values(s) = static_cast<int32_t>(lengths.back());
        }
        backend->copy(lengths_here.data(), backend->space(), values.data(), Space::host,
                      values.size() * int64_t{sizeof(int32_t)});
        EXPECT_TRUE(identical(select(most, pages.with_lengths(lengths_here.view())),
                              select(at(lengths), pages)))
            << draw;
    }
}

TEST(LengthsNowRefused, OnTheHost) {
    const Case c = make_case("refused", {2, 1, 16, 16, 8}, {0, 1}, {0, 20}, {.top_k = 2});
    const Tensor<float, 3> pool({4, 16, 16}), index_q({1, 1, 16});
    const Tensor<int32_t, 2> table = tensor<int32_t, 2>({1, 2}, {1, 3});
    const Tensor<int32_t, 1> lengths({1});
    Tensor<int32_t, 3> ids({1, 1, 2});
    const Keys<2> index_k = Keys<2>(pool, table.view()).with_lengths(lengths.view());
    EXPECT_EQ(refusal([&] {
                  make_backend("cpu")->index_select(c.problem, c.rule, {index_q, index_k}, ids);
              }),
              "seqused_k of index_k is in host memory, where cu_seqlens_k says the lengths");
}

}  // namespace
}  // namespace msa::test
