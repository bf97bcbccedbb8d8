// SPDX-License-Identifier: MIT
// Every selector on every case, against scores that are written out here.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "core/registry.h"
#include "core/select/selector.h"
#include "core/select/token_selector.h"
#include "core/tolerance.h"
#include "tests/core/select/gate_operands.h"
#include "tests/support/compare.h"
#include "tests/support/runner.h"
#include "tests/support/softmax.h"
#include "tests/support/truth.h"

namespace msa {
namespace {

using test::Case, test::Operands;

constexpr uint64_t kSeed = 11;

/// Packed token of each query.
std::vector<int64_t> query_tokens(const Problem& p) {
    std::vector<int64_t> tokens;
    for (const KeyRange& seen : visible_keys(p))
        tokens.push_back(seen.first + std::max<int64_t>(seen.count - 1, 0));
    return tokens;
}

/// A layer with its keys, ready to be cut into chunks of queries.
class Layer {
public:
    Layer(Problem problem, Operands operands)
        : p_(std::move(problem)),
          o_(std::move(operands)),
          visible_(visible_keys(p_)),
          tokens_(query_tokens(p_)) {}
    explicit Layer(const Case& c) : Layer(c.problem, test::make_operands(c, Element::f32)) {}

    const Problem& problem() const { return p_; }
    const Operands& operands() const { return o_; }
    void set_tokens(std::vector<int64_t> tokens) { tokens_ = std::move(tokens); }

    /// Scores of the queries of `range`. The selector is given the operands that it says it needs,
    /// and no others.
    Tensor<float, 3> scores(std::string_view name, QueryRange range, uint64_t seed = kSeed) const {
        const std::unique_ptr<Selector> selector = make_selector(name);
        Policy::Needs needs = selector->needs();
        needs.index |= needs.lightning || needs.qsa;
        const Problem p = p_.with_queries(range);
        const int64_t first = range.begin, n = range.end - range.begin;
        const SelectorLayer layer{
            .problem = p_,
            .backend = *backend_,
            .k = {*backend_, In<3>(o_.k)},
            .index_k = needs.index ? Mirror<2>(*backend_, In<2>(o_.index_k)) : Mirror<2>(),
            .seed = seed,
            .read_learned = test::random_gate(p_)};
        Mirror<3> index_q;
        if (needs.index) index_q = {*backend_, In<3>(o_.index_q.view().slice(first, n))};
        const SelectorChunk chunk(
            layer, p,
            std::span(tokens_).subspan(static_cast<size_t>(first), static_cast<size_t>(n)),
            {*backend_, In<3>(o_.q.view().slice(first, n))}, index_q, needs.max_logit);
        selector->prepare(layer);
        const Mirror<3> made = selector->score(layer, chunk);
        Tensor<float, 3> scores(made.shape());
        std::copy_n(made.host().data(), scores.size(), scores.data());
        return scores;
    }
    Tensor<float, 3> scores(std::string_view name) const { return scores(name, all()); }

    /// What the selector keeps of the budget of `rule`.
    Tensor<int32_t, 3> ids(std::string_view name, const SelectionRule& rule, QueryRange range,
                           uint64_t seed = kSeed) const {
        const Tensor<float, 3> by = scores(name, range, seed);
        Tensor<int32_t, 3> ids({by.extent(0), p_.kv_heads, rule.top_k});
        backend_->select_blocks(p_.with_queries(range), make_selector(name)->adjust(rule, 0), by,
                                ids);
        return ids;
    }
    Tensor<int32_t, 3> ids(std::string_view name, const SelectionRule& rule) const {
        return ids(name, rule, all());
    }

    QueryRange all() const { return {0, p_.queries()}; }
    /// The keys and the number of blocks that query i sees.
    KeyRange keys(int64_t i) const { return visible_[static_cast<size_t>(i)]; }
    int64_t blocks(int64_t i) const { return visible_blocks(keys(i).count, p_.block_size); }
    /// The positions of block b that query i sees.
    QueryRange seen(int64_t i, int64_t b) const {
        return {b * p_.block_size, std::min((b + 1) * p_.block_size, keys(i).count)};
    }

private:
    Problem p_;
    Operands o_;
    std::vector<KeyRange> visible_;
    std::vector<int64_t> tokens_;
    std::unique_ptr<Backend> backend_ = make_backend("cpu", {.threads = 1});  // many small calls
};

/// The scores of visible blocks by a formula of (query, group, block), all others -inf.
using Formula = std::function<double(int64_t, int64_t, int64_t)>;
Tensor<float, 3> written_out(const Layer& layer, const Formula& formula) {
    const Problem& p = layer.problem();
    Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
    std::fill_n(scores.data(), scores.size(), -INFINITY);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t b = 0; b < layer.blocks(i); ++b)
            for (int64_t r = 0; r < p.kv_heads; ++r)
                scores(i, r, b) = static_cast<float>(formula(i, r, b));
    return scores;
}

/// Visible blocks score as `want` within `bound`, and what is kept follows from `want`.
void expect_selector(const Layer& layer, const SelectionRule& rule, std::string_view name,
                     const Tensor<float, 3>& want, double bound) {
    const Tensor<float, 3> got = layer.scores(name);
    for (int64_t i = 0; i < got.extent(0); ++i)
        for (int64_t r = 0; r < got.extent(1); ++r)
            for (int64_t b = 0; b < layer.blocks(i); ++b)
                ASSERT_LE(std::fabs(double{got(i, r, b)} - double{want(i, r, b)}), bound)
                    << name << ", query " << i << ", group " << r << ", block " << b;
    EXPECT_TRUE(test::selection_follows(layer.problem(), rule, want, layer.ids(name, rule), bound));
}

class SelectorScores : public testing::TestWithParam<Case> {
protected:
    const Problem& p() const { return layer_.problem(); }
    const Operands& o() const { return layer_.operands(); }

    Layer layer_{GetParam()};
    test::Bounds bounds_ = test::bounds(layer_.problem(), layer_.operands());
};

TEST_P(SelectorScores, IndexIsTheLargestProductOfTheBlock) {
    const Tensor<float, 3> want = written_out(layer_, [&](int64_t i, int64_t r, int64_t b) {
        double top = -HUGE_VAL;
        const QueryRange seen = layer_.seen(i, b);
        for (int64_t j = seen.begin; j < seen.end; ++j) {
            double dot = 0;
            for (int64_t d = 0; d < p().index_dim; ++d)
                dot +=
                    double{o().index_q(i, r, d)} * double{o().index_k(layer_.keys(i).first + j, d)};
            top = std::max(top, p().index_scale() * dot);
        }
        return top;
    });
    expect_selector(layer_, GetParam().rule, "index", want, bounds_.scores);
}

TEST_P(SelectorScores, MeanKeyIsTheProductWithTheMeanOfTheVisibleKeys) {
    const Tensor<float, 3> want = written_out(layer_, [&](int64_t i, int64_t r, int64_t b) {
        double sum = 0;
        const QueryRange seen = layer_.seen(i, b);
        for (int64_t h = r * p().group_size(); h < (r + 1) * p().group_size(); ++h)
            for (int64_t j = seen.begin; j < seen.end; ++j)
                for (int64_t d = 0; d < p().head_dim; ++d)
                    sum += double{o().q(i, h, d)} * double{o().k(layer_.keys(i).first + j, r, d)};
        return sum / static_cast<double>(seen.end - seen.begin);
    });
    expect_selector(layer_, GetParam().rule, "mean-key", want,
                    mean_key_bound(p(), largest_norm<3>(o().q), largest_norm<3>(o().k)));
}

TEST_P(SelectorScores, OracleIsTheSoftmaxMassOfTheBlock) {
    Tensor<float, 3> want = written_out(layer_, [](int64_t, int64_t, int64_t) { return 0; });
    for (int64_t i = 0; i < p().queries(); ++i)
        for (int64_t h = 0; h < p().query_heads; ++h) {
            const std::vector<double> weights = test::softmax(p(), o().q, o().k, {}, i, h);
            for (int64_t b = 0; b < layer_.blocks(i); ++b) {
                double mass = 0;
                for (int64_t j = b * p().block_size; j < layer_.seen(i, b).end; ++j)
                    mass += weights[static_cast<size_t>(j)];
                want(i, h / p().group_size(), b) +=
                    static_cast<float>(mass / static_cast<double>(p().group_size()));
            }
        }
    expect_selector(layer_, GetParam().rule, "oracle", want, bounds_.mass);
}

TEST_P(SelectorScores, OracleLogitIsTheLargestLogitOfBlockAndGroup) {
    Tensor<float, 3> want =
        written_out(layer_, [](int64_t, int64_t, int64_t) { return -INFINITY; });
    for (int64_t i = 0; i < p().queries(); ++i)
        for (int64_t h = 0; h < p().query_heads; ++h) {
            const std::vector<double> logits = test::logits(p(), o().q, o().k, i, h);
            for (size_t j = 0; j < logits.size(); ++j) {
                float& top =
                    want(i, h / p().group_size(), static_cast<int64_t>(j) / p().block_size);
                top = std::max(top, static_cast<float>(logits[j]));
            }
        }
    expect_selector(layer_, GetParam().rule, "oracle-logit", want, bounds_.max_logit);
}

TEST_P(SelectorScores, WindowIsTheFirstBlockAndTheNewest) {
    const SelectionRule& rule = GetParam().rule;
    const Tensor<int32_t, 3> ids = layer_.ids("window", rule);
    const int64_t first = rule.forced_first > 0 ? rule.forced_first : rule.top_k > 1 ? 1 : 0;
    for (int64_t i = 0; i < p().queries(); ++i)
        for (int64_t r = 0; r < p().kv_heads; ++r) {
            const int64_t blocks = layer_.blocks(i);
            std::set<int64_t> want;
            for (int64_t b = 0; b < std::min(first, blocks); ++b) want.insert(b);
            for (int64_t b = blocks - 1; b >= 0 && std::ssize(want) < std::min(rule.top_k, blocks);
                 --b)
                want.insert(b);
            const std::span<const int32_t> kept = selected(ids, i, r);
            EXPECT_EQ(std::set<int64_t>(kept.begin(), kept.end()), want) << i << ", " << r;
        }
}

std::string case_name(const testing::TestParamInfo<Case>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(All, SelectorScores, testing::ValuesIn(test::cases()), case_name);

class EverySelector : public testing::TestWithParam<std::tuple<std::string, Case>> {
protected:
    const std::string& name() const { return std::get<0>(GetParam()); }
    const SelectionRule& rule() const { return std::get<1>(GetParam()).rule; }
    Layer layer_{std::get<1>(GetParam())};
};

TEST_P(EverySelector, SpendsTheSameBudgetAndKeepsTheForcedBlocks) {
    const Problem& p = layer_.problem();
    const Tensor<int32_t, 3> ids = layer_.ids(name(), rule());
    check_selection(p, ids);
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            const int64_t blocks = layer_.blocks(i);
            const std::span<const int32_t> row = selected(ids, i, r);
            const std::set<int64_t> kept(row.begin(), row.end());
            ASSERT_EQ(std::ssize(kept), std::min(rule().top_k, blocks)) << i << ", " << r;
            for (int64_t n = 0; n < std::min(rule().forced_local, blocks); ++n)
                ASSERT_TRUE(kept.contains(blocks - 1 - n)) << i << ", " << r;
            for (int64_t b = 0; b < std::min(rule().forced_first, blocks); ++b)
                ASSERT_TRUE(kept.contains(b)) << i << ", " << r;
        }
}

TEST_P(EverySelector, GivesTheSameHoweverTheQueriesAreCut) {
    const Tensor<float, 3> whole = layer_.scores(name());
    const Tensor<int32_t, 3> kept = layer_.ids(name(), rule());
    for (int64_t rows : {1, 7, 64})
        for (int64_t begin = 0; begin < layer_.problem().queries(); begin += rows) {
            const QueryRange range{begin, std::min(begin + rows, layer_.problem().queries())};
            const Tensor<float, 3> scores = layer_.scores(name(), range);
            const Tensor<int32_t, 3> ids = layer_.ids(name(), rule(), range);
            for (int64_t n = 0; n < ids.size(); ++n)
                ASSERT_EQ(ids.data()[n], kept.view()[begin].data()[n]) << rows << ", " << begin;
            for (int64_t i = range.begin; i < range.end; ++i)
                for (int64_t r = 0; r < scores.extent(1); ++r)
                    for (int64_t b = 0; b < layer_.blocks(i); ++b)
                        ASSERT_EQ(scores(i - begin, r, b), whole(i, r, b)) << rows << ", " << i;
        }
}

std::string selector_case_name(const testing::TestParamInfo<std::tuple<std::string, Case>>& info) {
    return test::identifier(std::get<0>(info.param) + "_" + std::get<1>(info.param).name);
}
INSTANTIATE_TEST_SUITE_P(All, EverySelector,
                         testing::Combine(testing::ValuesIn(list_pointwise_selectors()),
                                          testing::ValuesIn(test::cases())),
                         selector_case_name);

TEST(Selectors, NothingBehindTheQueryCounts) {
    const Problem p = square_problem(60, 4, 2, 16, 16, 8).with_query_rows(std::vector<int64_t>{42});
    const auto operands = [&] {
        Operands o;
        o.q = test::normal<3>({1, 4, 16}, 1);
        o.k = test::normal<3>({60, 2, 16}, 2);
        o.v = test::normal<3>({60, 2, 16}, 3);
        o.index_q = test::normal<3>({1, 2, 16}, 4);
        o.index_k = test::normal<2>({60, 16}, 5);
        return o;
    };
    Operands poisoned = operands();
    for (int64_t j = 43; j < 60; ++j) {  // from the middle of the query's own block
        std::fill_n(&poisoned.k(j, 0, 0), 32, NAN);
        std::fill_n(&poisoned.index_k(j, 0), 16, NAN);
    }
    const Layer clean(p, operands()), dirty(p, std::move(poisoned));
    for (const std::string& name : list_pointwise_selectors()) {
        const Tensor<float, 3> want = clean.scores(name), got = dirty.scores(name);
        for (int64_t r = 0; r < 2; ++r)
            for (int64_t b = 0; b < 6; ++b)
                EXPECT_EQ(got(0, r, b), want(0, r, b)) << name << ", block " << b;
    }
}

/// 3000 queries, all on the last of 128 keys: 16 blocks, the last one local.
class RandomSelection : public testing::Test {
protected:
    static constexpr int64_t kQueries = 3000, kFree = 15, kDrawn = 3;
    static Problem problem() {
        Problem p = square_problem(128, 2, 2, 16, 0, 8);
        p.batch = PackedBatch({0, kQueries}, {0, 128}, std::vector<int64_t>(kQueries, 127));
        return p;
    }
    static Layer layer() {
        Operands o;
        o.q = Tensor<float, 3>({kQueries, 2, 16});
        o.k = Tensor<float, 3>({128, 2, 16});
        Layer made(problem(), std::move(o));
        std::vector<int64_t> tokens(kQueries);
        for (int64_t i = 0; i < kQueries; ++i) tokens[static_cast<size_t>(i)] = i;
        made.set_tokens(tokens);
        return made;
    }
    /// Free blocks that row (i, r) of a and row (j, s) of b share.
    static int64_t shared(const Tensor<int32_t, 3>& a, int64_t i, int64_t r,
                          const Tensor<int32_t, 3>& b, int64_t j, int64_t s) {
        int64_t both = 0;
        for (int32_t block : selected(a, i, r))
            for (int32_t other : selected(b, j, s)) both += block == other && block < kFree;
        return both;
    }
    const Layer layer_ = layer();
    const SelectionRule rule_{.top_k = kDrawn + 1};
};

TEST_F(RandomSelection, KeepsEveryBlockAlikeOften) {
    const Tensor<int32_t, 3> ids = layer_.ids("random", rule_);
    const double chance = double{kDrawn} / kFree;
    for (int64_t r = 0; r < 2; ++r)
        for (int32_t b = 0; b < kFree; ++b) {
            double kept = 0;
            for (int64_t i = 0; i < kQueries; ++i)
                for (int32_t id : selected(ids, i, r)) kept += id == b;
            EXPECT_NEAR(kept / kQueries, chance, sampling_bound(chance * (1 - chance), kQueries))
                << b;
        }
}

TEST_F(RandomSelection, TokensGroupsAndSeedsAreIndependent) {
    const Tensor<int32_t, 3> ids = layer_.ids("random", rule_);
    const Tensor<int32_t, 3> other = layer_.ids("random", rule_, layer_.all(), kSeed + 1);
    EXPECT_TRUE(test::identical(ids, layer_.ids("random", rule_)));
    double token = 0, group = 0, seed = 0;
    for (int64_t i = 0; i < kQueries; ++i) {
        token += static_cast<double>(shared(ids, i, 0, ids, (i + 1) % kQueries, 0));
        group += static_cast<double>(shared(ids, i, 0, ids, i, 1));
        seed += static_cast<double>(shared(ids, i, 0, other, i, 0));
    }
    // Hypergeometric: 3 draws of 15, 3 of them marked.
    constexpr double draws = kDrawn, all = kFree, share = draws / all;
    const double mean = draws * share, variance = mean * (1 - share) * (all - draws) / (all - 1);
    for (double both : {token, group, seed})
        EXPECT_NEAR(both / kQueries, mean, sampling_bound(variance, kQueries));
}

TEST(SelectorRegistry, KnowsItsNames) {
    std::string known;
    std::set<std::string> seen;
    for (const std::string& name : list_selectors()) {
        const std::unique_ptr<Selector> selector = make_selector(name);
        EXPECT_EQ(selector->name(), name);
        EXPECT_GT(selector->rule().size(), 20U) << name;
        EXPECT_TRUE(seen.insert(name).second) << name;
        known += (known.empty() ? "" : ", ") + name;
    }
    EXPECT_EQ(make_selector("moba")->name(), "mean-key");
    EXPECT_EQ(make_selector("a-shape")->name(), "window");
    for (const std::string unknown : {"best", "", "Oracle", "oracle "}) try {
            make_selector(unknown);
            ADD_FAILURE() << unknown;
        } catch (const InputError& error) {
            const char* meant = unknown.size() < 5 ? "" : " (did you mean 'oracle'?)";
            EXPECT_EQ(error.what(), concat("no selector is called '", unknown, "'", meant,
                                           "; there are: ", known));
        }
}

TEST(SelectorRegistry, PointwiseSelectorsNeedNothingOfOtherQueries) {
    const std::vector<std::string> pointwise = list_pointwise_selectors();
    for (const std::string& name : list_selectors()) {
        const Policy::Needs needs = make_selector(name)->needs();
        EXPECT_EQ(std::find(pointwise.begin(), pointwise.end(), name) != pointwise.end(),
                  !needs.queries && !needs.values && !needs.previous_layer && !needs.rule)
            << name;
        EXPECT_EQ(needs.max_logit, name == "oracle-logit");
    }
    for (const char* name : {"index", "oracle", "oracle-logit", "mean-key", "random", "window"})
        EXPECT_NE(std::find(pointwise.begin(), pointwise.end(), name), pointwise.end()) << name;
}

TEST(SelectorRegistry, AdjustedRulesAreValidAndKeepTheBudget) {
    for (const std::string& name : list_selectors())
        for (const SelectionRule asked :
             {SelectionRule{.top_k = 4}, SelectionRule{.top_k = 1}, SelectionRule{.top_k = 2},
              SelectionRule{.top_k = 3, .forced_local = 3},
              SelectionRule{.top_k = 6, .forced_local = 2, .forced_first = 2}}) {
            const SelectionRule made = make_selector(name)->adjust(asked, 0);
            made.validate();
            // Of two blocks, one is chosen by score: no policy but the window is the window.
            if (asked == SelectionRule{.top_k = 2} && name != "window") {
                EXPECT_EQ(made.forced_first + made.forced_local, 1) << name;
            }
            EXPECT_TRUE(made.top_k == asked.top_k || made.top_k == kUneven) << name;
            EXPECT_GE(made.forced_local, asked.forced_local) << name;
            EXPECT_GE(made.forced_first, asked.forced_first) << name;
            if (name != "window") continue;
            const bool room = asked.forced_local < asked.top_k;
            EXPECT_EQ(made.forced_local, asked.forced_local);
            EXPECT_EQ(made.forced_first, room && asked.forced_first == 0 ? 1 : asked.forced_first);
        }
}

TEST(SelectorRegistry, ForcedSharesScaleWithTheBudget) {
    // 1 first and 2 newest of 16.
    const auto of_16 = [](int64_t top_k) { return force_share({.top_k = top_k}, 1, 2, 16); };
    EXPECT_EQ(of_16(2), (SelectionRule{.top_k = 2}));
    EXPECT_EQ(of_16(4), (SelectionRule{.top_k = 4}));
    EXPECT_EQ(of_16(8), (SelectionRule{.top_k = 8, .forced_local = 1, .forced_first = 1}));
    EXPECT_EQ(of_16(16), (SelectionRule{.top_k = 16, .forced_local = 2, .forced_first = 1}));
    EXPECT_EQ(of_16(64), (SelectionRule{.top_k = 64, .forced_local = 2, .forced_first = 1}));
}

TEST(SelectorRegistry, ForceLeavesASlotToTheScores) {
    const SelectionRule four{.top_k = 4};
    EXPECT_EQ(force(four, 1, 2), (SelectionRule{.top_k = 4, .forced_local = 2, .forced_first = 1}));
    EXPECT_EQ(force(four, 1, 9), (SelectionRule{.top_k = 4, .forced_local = 2, .forced_first = 1}));
    EXPECT_EQ(force(four, 9, 1), (SelectionRule{.top_k = 4, .forced_local = 1, .forced_first = 2}));
    EXPECT_EQ(force({.top_k = 2}, 1, 1), (SelectionRule{.top_k = 2}));
    EXPECT_EQ(force({.top_k = 1}, 1, 2), (SelectionRule{.top_k = 1}));
    const SelectionRule more{.top_k = 9, .forced_local = 3, .forced_first = 2};
    EXPECT_EQ(force(more, 1, 2), more);
}

}  // namespace
}  // namespace msa
