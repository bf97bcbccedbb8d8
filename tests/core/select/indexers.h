// SPDX-License-Identifier: MIT
// Layers with an indexer for the tests of its selectors: DSA's own, and index keys set by hand.
#pragma once

#include "core/select/token_selector.h"
#include "tests/core/select/policy.h"

namespace msa::test {

/// DSA's own indexer: 3 heads of 32 channels, and weights of either sign.
class LearnedDsa : public Policy {
protected:
    LearnedDsa() {
        learned_.dsa_heads = 3;
        learned_.dsa_dim = 32;
        read_learned_ = [this](LearnedOperand operand, std::span<const int64_t> tokens) {
            const Tensor<float, 3>* all[] = {&dsa_q_, &dsa_k_, &dsa_w_};
            std::vector<int64_t> rows(tokens.begin(), tokens.end());
            if (tokens.empty()) {
                rows.resize(static_cast<size_t>(p_.keys()));
                std::iota(rows.begin(), rows.end(), 0);
            }
            return rows_of(all[static_cast<size_t>(operand)]->view(), rows);
        };
    }
    /// I of the mean of `count` keys from j on, in double.
    double learned(int64_t token, int64_t j, int64_t count = 1) const {
        double sum = 0;
        for (int64_t h = 0; h < 3; ++h) {
            double dot = 0;
            for (int64_t at = start(token) + j; at < start(token) + j + count; ++at)
                for (int64_t d = 0; d < 32; ++d)
                    dot += double{dsa_q_(token, h, d)} * double{dsa_k_(at, 0, d)} /
                           static_cast<double>(count);
            sum += double{dsa_w_(token, 0, h)} * std::max(0.0, dot);
        }
        return sum;
    }

    Tensor<float, 3> dsa_q_ = normal<3>({p_.keys(), 3, 32}, 6),
                     dsa_k_ = normal<3>({p_.keys(), 1, 32}, 7),
                     dsa_w_ = normal<3>({p_.keys(), 1, 3}, 8);
};

/// One sequence in blocks of 8, a query at each key; every index operand is 0 until it is set.
class IndexerByHand : public testing::Test {
protected:
    using Tokens = std::vector<int64_t>;

    IndexerByHand(int64_t keys, int64_t groups)
        : p_(square_problem(keys, groups, groups, 16, 16, 8)),
          q_({keys, groups, 16}),
          k_(q_.shape()),
          index_q_(q_.shape()),
          index_k_({keys, 16}),
          tokens_(static_cast<size_t>(keys)) {
        std::iota(tokens_.begin(), tokens_.end(), 0);
    }
    SelectorLayer layer() {
        return {.problem = p_,
                .backend = *backend_,
                .k = {*backend_, In<3>(k_)},
                .index_k = {*backend_, In<2>(index_k_)}};
    }
    SelectorChunk chunk(const SelectorLayer& layer) {
        return {layer, p_, tokens_, {*backend_, In<3>(q_)}, {*backend_, In<3>(index_q_)}};
    }
    Tensor<float, 3> all_scores(const char* name) {
        const std::unique_ptr<Selector> selector = make_selector(name);
        const SelectorLayer of = layer();
        selector->prepare(of);
        const Mirror<3> made = selector->score(of, chunk(of));
        Tensor<float, 3> scores(made.shape());
        std::copy_n(made.host().data(), scores.size(), scores.data());
        return scores;
    }
    /// What a policy keeps of `budget` at the query that sees `visible` keys.
    Tokens keep(const char* name, int64_t visible, int64_t budget) {
        const std::unique_ptr<TokenSelector> selector = find_token_selector(name);
        const SelectorLayer of = layer();
        selector->prepare(of);
        return selector->select(of, chunk(of), std::vector<int64_t>{budget})
            .front()[static_cast<size_t>(visible - 1)];
    }

    Problem p_;
    Tensor<float, 3> q_, k_, index_q_;
    Tensor<float, 2> index_k_;
    std::unique_ptr<Backend> backend_ = make_backend("cpu", {.threads = 1});
    std::vector<int64_t> tokens_;
};

}  // namespace msa::test
