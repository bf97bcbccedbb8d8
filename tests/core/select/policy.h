// SPDX-License-Identifier: MIT
// Selectors on two small packed sequences, and attention written out to check them by.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <string_view>
#include <vector>

#include "core/registry.h"
#include "core/select/selector.h"
#include "core/tolerance.h"
#include "tests/support/random.h"

namespace msa::test {

/// Sequences of `first` and 75 tokens, 2 groups of 2 heads.
class Policy : public testing::Test {
protected:
    /// Larger queries look at fewer keys.
    explicit Policy(float q_sigma = 1.5F, int64_t first = 210)
        : first_(first), q_(normal<3>({first + 75, 4, 16}, 1, q_sigma)) {}

    const int64_t first_;
    Problem p_ = [this] {
        Problem p = square_problem(0, 4, 2, 16, 16, 16);
        p.batch = PackedBatch({0, first_, first_ + 75}, {0, first_, first_ + 75});
        return p;
    }();
    Tensor<float, 3> q_, k_ = normal<3>({p_.keys(), 2, 16}, 2), v_ = normal<3>(k_.shape(), 5);
    const Tensor<float, 3> index_q_ = normal<3>({p_.keys(), 2, 16}, 3);
    const Tensor<float, 2> index_k_ = normal<2>({p_.keys(), 16}, 4);
    std::unique_ptr<Backend> backend_ = make_backend("cpu", {.threads = 2});
    std::vector<int64_t> counted_;  // as in SelectorLayer
    LearnedSizes learned_;
    ReadLearned read_learned_;
    RopePairs rope_;

    Tensor<float, 3> rows_of(View<const float, 3> all, std::span<const int64_t> rows) const {
        Tensor<float, 3> some({std::ssize(rows), all.extent(1), all.extent(2)});
        for (size_t n = 0; n < rows.size(); ++n)
            std::copy_n(all[rows[n]].data(), some.extent(1) * some.extent(2),
                        some.view()[static_cast<int64_t>(n)].data());
        return some;
    }

    Tensor<float, 3> mass_of(const Problem& p, View<const float, 3> q) const {
        Tensor<float, 3> mass({p.queries(), p.kv_heads, p.blocks()});
        backend_->block_mass(p, {q, k_.view()}, {mass, {}});
        return mass;
    }

    /// Scores of all queries behind the prompt, in chunks of `step`; NaN where nothing is written.
    Tensor<float, 3> scores(std::string_view name, int64_t prompt = 0,
                            const SelectionRule& rule = {.top_k = 4}, int64_t step = 285) const {
        const std::unique_ptr<Selector> selector = make_selector(name);
        const SelectorLayer layer = selector_layer(prompt, rule);
        std::vector<int64_t> tokens;
        for (int64_t i = 0; i < p_.queries(); ++i)
            if (position(i) >= prompt) tokens.push_back(i);
        const Problem some = p_.with_query_rows(tokens);
        Tensor<float, 3> all({p_.queries(), p_.kv_heads, p_.blocks()});
        std::fill_n(all.data(), all.size(), NAN);
        selector->prepare(layer);
        for (int64_t begin = 0; begin < some.queries(); begin += step) {
            const QueryRange range{begin, std::min(begin + step, some.queries())};
            const auto mine = std::span(tokens).subspan(static_cast<size_t>(begin),
                                                        static_cast<size_t>(range.end - begin));
            const Problem chunk = some.with_queries(range);
            const SelectorChunk given = selector_chunk(layer, chunk, mine);
            const Mirror<3> part = selector->score(layer, given);
            for (size_t n = 0; n < mine.size(); ++n)
                std::copy_n(part.host()[static_cast<int64_t>(n)].data(), p_.kv_heads * p_.blocks(),
                            all.view()[mine[n]].data());
        }
        return all;
    }

    SelectorLayer selector_layer(int64_t prompt = 0,
                                 const SelectionRule& rule = {.top_k = 4}) const {
        const auto read_q = [this](auto rows) { return Mirror<3>(*backend_, rows_of(q_, rows)); };
        return {.problem = p_,
                .backend = *backend_,
                .k = {*backend_, In<3>(k_)},
                .index_k = {*backend_, In<2>(index_k_)},
                .v = {*backend_, In<3>(v_)},
                .seed = 7,
                .rule = rule,
                .read_q = read_q,
                .learned = learned_,
                .read_learned = read_learned_,
                .prompt = prompt,
                .counted = counted_,
                .rope = rope_};
    }

    /// Given this layer's mass as the previous one's.
    SelectorChunk selector_chunk(const SelectorLayer& layer, const Problem& chunk,
                                 std::span<const int64_t> tokens) const {
        const Mirror<3> q(*backend_, rows_of(q_.view(), tokens));
        const Mirror<3> index_q(*backend_, rows_of(index_q_.view(), tokens));
        const auto previous = [=, this] {
            auto mass = backend_->make<float, 3>({chunk.queries(), chunk.kv_heads, chunk.blocks()});
            backend_->block_mass(chunk, {q.operand(), layer.k.operand()}, {mass, {}});
            backend_->finish();
            return Mirror<3>(*backend_, std::move(mass));
        };
        return {layer, chunk, tokens, q, index_q, false, previous};
    }

    int64_t start(int64_t token) const { return token < first_ ? 0 : first_; }
    int64_t position(int64_t token) const { return token - start(token); }
    int64_t length(int64_t token) const { return token < first_ ? first_ : 75; }
    int64_t blocks(int64_t token) const { return position(token) / p_.block_size + 1; }

    /// softmax of the query `token` and head h over the newest `window` positions it sees; else 0.
    std::vector<double> attention(int64_t token, int64_t h, int64_t window = 1 << 20) const {
        std::vector<double> weights(static_cast<size_t>(length(token)), 0.0);
        double sum = 0;
        for (int64_t j = std::max<int64_t>(0, position(token) + 1 - window); j <= position(token);
             ++j) {
            double dot = 0;
            for (int64_t d = 0; d < 16; ++d)
                dot += double{q_(token, h, d)} * double{k_(start(token) + j, h / 2, d)};
            sum += weights[static_cast<size_t>(j)] = std::exp(dot / 4);
        }
        for (double& weight : weights) weight /= sum;
        return weights;
    }

    /// The same over all positions, computed once: q and k must not change afterwards.
    const std::vector<double>& kept_attention(int64_t token, int64_t h) const {
        std::vector<double>& weights = kept_[{token, h}];
        if (weights.empty()) weights = attention(token, h);
        return weights;
    }

    /// Mean of k [dh] over block b of the token's sequence, and of one head's q.
    auto mean_key(int64_t token, int64_t r, int64_t b) const { return mean(k_, token, r, b); }
    auto mean_query(int64_t token, int64_t h, int64_t b) const { return mean(q_, token, h, b); }

    /// Error of a sum of attention weights that add up to `total`.
    double votes_bound(double total) const {
        const double logit =
            logit_bound(p_.softmax_scale(), largest_norm<3>(q_), largest_norm<3>(k_), p_.head_dim);
        return total * mass_bound(logit, static_cast<double>(first_));
    }

    /// Compares with want(token, group, block) on all blocks that queries behind `prompt` see.
    template <typename Want>
    void expect_scores(const Tensor<float, 3>& got, double bound, Want want,
                       int64_t prompt = 0) const {
        for (int64_t i = 0; i < p_.queries(); ++i)
            for (int64_t r = 0; position(i) >= prompt && r < p_.kv_heads; ++r)
                for (int64_t b = 0; b < blocks(i); ++b)
                    ASSERT_LE(std::fabs(double{got(i, r, b)} - want(i, r, b)), bound)
                        << "token " << i << ", group " << r << ", block " << b << ": "
                        << got(i, r, b) << " against " << want(i, r, b);
    }

    /// The same scores, bit by bit, whatever the chunks.
    void expect_chunks_do_not_matter(std::string_view name, int64_t prompt = 0) const {
        const Tensor<float, 3> whole = scores(name, prompt);
        for (int64_t step : {1, 50}) {
            const Tensor<float, 3> cut = scores(name, prompt, {.top_k = 4}, step);
            for (int64_t i = 0; i < p_.queries(); ++i)
                for (int64_t r = 0; position(i) >= prompt && r < p_.kv_heads; ++r)
                    for (int64_t b = 0; b < blocks(i); ++b)
                        ASSERT_EQ(cut(i, r, b), whole(i, r, b)) << step << ", token " << i;
        }
    }

private:
    mutable std::map<std::array<int64_t, 2>, std::vector<double>> kept_;

    std::vector<double> mean(const Tensor<float, 3>& of, int64_t token, int64_t head,
                             int64_t b) const {
        std::vector<double> sum(16, 0.0);
        const int64_t end = std::min(16 * b + 16, length(token));
        for (int64_t j = 16 * b; j < end; ++j)
            for (int64_t d = 0; d < 16; ++d)
                sum[static_cast<size_t>(d)] +=
                    double{of(start(token) + j, head, d)} / static_cast<double>(end - 16 * b);
        return sum;
    }
};

}  // namespace msa::test
