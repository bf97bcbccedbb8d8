// SPDX-License-Identifier: MIT
// Qwen's sparse attention, as transformers' `qwen4_exp` has it (class Qwen4ExpTextQSAIndexer); what
// is verified there and what stands in for it here: core/select/doc/qsa.md.
#include <algorithm>
#include <optional>
#include <utility>

#include "core/indexer/qsa_kl.h"
#include "core/select/cost.h"
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
        return "where the layer has no qsa_q and qsa_k, on means of index_k as it is, after norm "
               "and RoPE; QSA takes the mean first";
    }
    std::vector<PolicyOption> options() override {
        return {{"compress",
                 "neighbouring index keys that are scored as one, by their mean; qsa_k has its own",
                 &compress_, 1, kMostCompress}};
    }
    Family family() const override { return Family::index_branch; }
    PolicyNeeds needs() const override { return {.qsa = true}; }
    PolicyCost do_cost(const Phase& phase) const override {
        if (phase.learned.qsa_heads > 0) return qsa_cost(phase.problem, phase.learned);
        return cost_of_scored(index_branch_cost(phase.problem), phase.problem,
                              IndexPieces::seen(phase.problem, compress_));
    }
    void prepare(const SelectorLayer& layer) override {
        if (layer.learned.qsa_heads == 0) {
            pieces_.emplace(layer, layer.index_k, compress_);
            return;
        }
        compress_ = layer.learned.qsa_compress;
        Tensor<float, 3> all = layer.read_learned(LearnedOperand::qsa_k, {});
        Tensor<float, 2> keys({all.extent(0), all.extent(2)}, Fill::nothing);
        std::copy_n(all.data(), all.size(), keys.data());
        pieces_.emplace(layer, std::move(keys), compress_);
    }

protected:
    LightningOperands operands(const SelectorLayer& layer, const SelectorChunk& chunk) const {
        if (layer.learned.qsa_heads == 0) return {chunk.index_q, {}, {}};
        return {{layer.backend, layer.read_learned(LearnedOperand::qsa_q, chunk.tokens)}, {}, {}};
    }

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
        return {layer.backend,
                pieces_->qsa_scores(layer.backend, chunk.problem, operands(layer, chunk))};
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
        pieces_->for_each_row(layer.backend, p, this->operands(layer, chunk),
                              [&](int64_t i, View<const float, 1> scores) {
                                  const auto row = static_cast<size_t>(i);
                                  for (size_t n = 0; n < budgets.size(); ++n)
                                      kept[n][row] =
                                          tokens_of(scores, visible_keys(p)[row].count, budgets[n]);
                              });
        return kept;
    }

private:
    /// The tail, its newest tokens if the budget is less, and of whole pieces the best that the
    /// rest of the budget has room for.
    std::vector<int64_t> tokens_of(View<const float, 1> scores, int64_t visible,
                                   int64_t budget) const {
        const int64_t tail = std::max(pieces_->tail_of(visible), visible - budget);
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
