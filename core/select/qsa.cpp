// SPDX-License-Identifier: MIT
// Qwen's sparse attention, as transformers' `qwen4_exp` has it (class Qwen4ExpTextQSAIndexer); what
// is verified there and what stands in for it here: core/select/doc/qsa.md.
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
class Qsa : public Kind {
public:
    std::string_view note() const override {
        return "on means of index_k as it is, after norm and RoPE; QSA takes the mean first";
    }
    std::vector<PolicyOption> options() override {
        return {{"compress", "neighbouring index keys that are scored as one, by their mean",
                 &compress_, 1, 1024}};
    }
    Family family() const override { return Family::index_branch; }
    PolicyNeeds needs() const override { return {.index = true}; }
    PolicyCost cost(const Phase& phase) const override {
        return cost_of_scored(index_branch_cost(phase.problem), phase.problem,
                              IndexPieces::seen(phase.problem, compress_));
    }
    void prepare(const SelectorLayer& layer) override {
        pieces_.emplace(layer, layer.index_k, compress_);
    }

protected:
    /// Of the keys that a query sees, the first one that no complete piece holds.
    int64_t tail_of(int64_t visible) const { return visible - visible % compress_; }

    int64_t compress_ = 4;
    std::optional<IndexPieces> pieces_;
};

class QsaSelector final : public Qsa<Selector> {
public:
    std::string_view name() const override { return "qsa"; }
    std::string_view rule() const override {
        return "largest over the means of 4 neighbouring index keys in the block of the sum over "
               "index heads of ReLU(index_q . mean), one choice for all groups; the unfinished "
               "last 4 always kept (QSA of Qwen3.8-Flash-Next, transformers qwen4_exp)";
    }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        Tensor<float, 3> scores = pieces_->block_scores(layer.backend, p, {chunk.index_q, {}, {}});
        for (int64_t i = 0; i < p.queries(); ++i) {
            const int64_t visible = visible_keys(p)[static_cast<size_t>(i)].count;
            const int64_t tail = tail_of(visible);
            for (int64_t b = tail / p.block_size; b < visible_blocks(visible, p.block_size); ++b)
                for (int64_t r = 0; tail < visible && r < p.kv_heads; ++r)
                    scores(i, r, b) = std::numeric_limits<float>::infinity();
        }
        return {layer.backend, std::move(scores)};
    }
};

class QsaTokensSelector final : public Qsa<TokenSelector> {
public:
    std::string_view name() const override { return "qsa-tokens"; }
    std::string_view rule() const override {
        return "of means of 4 neighbouring index keys, the tokens of those with the highest sum "
               "over index heads of ReLU(index_q . mean), one choice for all groups; the "
               "unfinished "
               "last 4 always kept (QSA of Qwen3.8-Flash-Next, transformers qwen4_exp)";
    }
    std::vector<KeptTokens> select(const SelectorLayer& layer, const SelectorChunk& chunk,
                                   std::span<const int64_t> budgets) const override {
        const Problem& p = chunk.problem;
        std::vector<KeptTokens> kept(budgets.size(), KeptTokens(static_cast<size_t>(p.queries())));
        pieces_->for_each_row(
            layer.backend, p, {chunk.index_q, {}, {}}, [&](int64_t i, View<const float, 1> scores) {
                const auto row = static_cast<size_t>(i);
                for (size_t n = 0; n < budgets.size(); ++n)
                    kept[n][row] = tokens_of(scores, visible_keys(p)[row].count, budgets[n]);
            });
        return kept;
    }

private:
    /// The tail, its newest tokens if the budget is less, and of whole pieces the best that the
    /// rest of the budget has room for.
    std::vector<int64_t> tokens_of(View<const float, 1> scores, int64_t visible,
                                   int64_t budget) const {
        const int64_t tail = std::max(tail_of(visible), visible - budget);
        std::vector<int64_t> tokens;
        for (const int64_t piece : highest(scores, (budget - (visible - tail)) / compress_))
            for (int64_t j = piece * compress_; j < (piece + 1) * compress_; ++j)
                tokens.push_back(j);
        for (int64_t j = tail; j < visible; ++j) tokens.push_back(j);
        return tokens;
    }
};

}  // namespace

std::unique_ptr<Selector> make_qsa_selector() { return std::make_unique<QsaSelector>(); }

std::unique_ptr<TokenSelector> make_qsa_tokens_selector() {
    return std::make_unique<QsaTokensSelector>();
}

}  // namespace msa
