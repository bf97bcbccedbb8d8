// SPDX-License-Identifier: MIT
// Hierarchical indexing: means of blocks propose, the lightning indexer's tokens in them decide.
// What is taken from the source and what is not: core/select/doc/hisa.md.
#include <algorithm>
#include <limits>
#include <optional>

#include "core/select/index_pieces.h"
#include "core/select/selector.h"
#include "core/select/token_selector.h"

namespace msa {
namespace {

/// What the forms of blocks (Kind = Selector) and of tokens (TokenSelector) have in common.
template <typename Kind>
class Hisa : public LightningPolicy<Kind> {
public:
    std::vector<PolicyOption> options() override {
        return {{"candidates", "tokens of the blocks in which tokens are scored", &candidates_, 1,
                 1 << 30}};
    }
    /// The mean of every complete block, and every visible token of the candidates.
    PolicyCost do_cost(const Phase& phase) const override {
        const auto scored = [&](int64_t keys) {
            return keys / phase.problem.block_size +
                   std::min(keys, (most(phase.problem) - 1) * phase.problem.block_size + keys -
                                      own_block(keys, phase.problem.block_size) *
                                          phase.problem.block_size);
        };
        return cost_of_scored(LightningPolicy<Kind>::do_cost(phase), phase.problem,
                              over_queries(phase.problem, scored));
    }
    void prepare(const SelectorLayer& layer) override {
        LightningPolicy<Kind>::prepare(layer);
        means_.emplace(layer, this->reader_.keys(layer), layer.problem.block_size);
    }

protected:
    using Blocks = std::vector<std::vector<int64_t>>;  // of each query, ascending

    /// The first block, the query's own, and the best of the others.
    Blocks candidates(const SelectorLayer& layer, const SelectorChunk& chunk) const {
        const Problem& p = chunk.problem;
        Blocks all(static_cast<size_t>(p.queries()));
        means_->for_each_row(
            layer.backend, p, this->reader_.operands(layer, chunk),
            [&](int64_t i, View<const float, 1> scores) {
                const auto row = static_cast<size_t>(i);
                all[row] = chosen(scores, visible_blocks(visible_keys(p)[row].count, p.block_size),
                                  most(p));
            });
        return all;
    }

private:
    int64_t most(const Problem& p) const { return ceil_div(candidates_, p.block_size); }

    /// scores: of the complete blocks. Of one candidate, the query's own block stays.
    static std::vector<int64_t> chosen(View<const float, 1> scores, int64_t blocks, int64_t most) {
        std::vector<int64_t> ids;
        if (blocks > 1 && most > 1) ids.push_back(0);
        if (blocks > 2 && most > 2)
            for (const int64_t b : highest(scores.slice(1, blocks - 2), most - 2))
                ids.push_back(b + 1);
        if (blocks > 0) ids.push_back(blocks - 1);
        return ids;
    }

    int64_t candidates_ = 8192;
    std::optional<IndexPieces> means_;
};

class HisaSelector final : public Hisa<Selector> {
public:
    std::string_view name() const override { return "hisa"; }
    std::string_view rule() const override {
        return "the lightning indexer's largest token, in the blocks of 8192 tokens alone whose "
               "mean index key it scores highest, the first and the own block among them (HISA, "
               "arXiv 2603.28458)";
    }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const Blocks in = candidates(layer, chunk);
        const Tensor<float, 3> largest =
            lightning_block_scores(layer.backend, p, reader_.operands(layer, chunk));
        Tensor<float, 3> scores(largest.shape());
        std::fill_n(scores.data(), scores.size(), -std::numeric_limits<float>::infinity());
        for (int64_t i = 0; i < p.queries(); ++i)
            for (const int64_t b : in[static_cast<size_t>(i)])
                for (int64_t r = 0; r < p.kv_heads; ++r) scores(i, r, b) = largest(i, r, b);
        return {layer.backend, std::move(scores)};
    }
};

class HisaTokensSelector final : public Hisa<TokenSelector> {
public:
    std::string_view name() const override { return "hisa-tokens"; }
    std::string_view rule() const override {
        return "the lightning indexer's highest tokens, of the blocks of 8192 tokens alone whose "
               "mean index key it scores highest, the first and the own block among them (HISA, "
               "arXiv 2603.28458)";
    }
    std::vector<KeptTokens> select(const SelectorLayer& layer, const SelectorChunk& chunk,
                                   std::span<const int64_t> budgets) const override {
        const Problem& p = chunk.problem;
        const Blocks in = candidates(layer, chunk);
        std::vector<KeptTokens> kept(budgets.size(), KeptTokens(in.size()));
        for_each_lightning_row(
            layer.backend, p, reader_.operands(layer, chunk),
            [&](int64_t i, View<const float, 1> scores) {
                const auto row = static_cast<size_t>(i);
                std::vector<int64_t> tokens;
                std::vector<float> values;
                for (const int64_t b : in[row])
                    for (int64_t j = b * p.block_size;
                         j < std::min((b + 1) * p.block_size, scores.size()); ++j) {
                        tokens.push_back(j);
                        values.push_back(scores(j));
                    }
                for (size_t n = 0; n < budgets.size(); ++n)
                    for (const int64_t at :
                         highest({values.data(), {std::ssize(values)}}, budgets[n]))
                        kept[n][row].push_back(tokens[static_cast<size_t>(at)]);
            });
        return kept;
    }
};

}  // namespace

std::unique_ptr<Selector> make_hisa_selector() { return std::make_unique<HisaSelector>(); }

std::unique_ptr<TokenSelector> make_hisa_tokens_selector() {
    return std::make_unique<HisaTokensSelector>();
}

}  // namespace msa
