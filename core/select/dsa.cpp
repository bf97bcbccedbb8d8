// SPDX-License-Identifier: MIT
#include <algorithm>
#include <limits>
#include <vector>

#include "core/select/block_vectors.h"
#include "core/select/lightning.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class DsaSelector final : public LightningPolicy<Selector> {
public:
    std::string_view name() const override { return "dsa"; }
    std::string_view rule() const override {
        return "the lightning indexer: largest over the block's tokens of the sum over index heads "
               "of w * ReLU(index_q . index_k), w learned for each head and query, one choice for "
               "all groups (DeepSeek-V3.2-Exp)";
    }
    std::vector<PolicyOption> options() override {
        return {{"compress",
                 "neighbouring index keys that are scored as one, by their mean; DeepSeek-V4: 4, "
                 "with learned weights",
                 &compress_, 1, 1024}};
    }
    /// Every key, or every mean of keys, is scored once.
    PolicyCost cost(const Problem& phase, int64_t prompt) const override {
        PolicyCost cost = LightningPolicy::cost(phase, prompt);
        if (compress_ == 1) return cost;
        const double share =
            over_queries(phase, [&](int64_t keys) { return keys / compress_; }) / keys_seen(phase);
        return {cost.flops * share, cost.bytes * share};
    }

    void prepare(const SelectorLayer& layer) override {
        LightningPolicy::prepare(layer);
        if (compress_ == 1) return;
        const std::vector<int64_t>& tokens = layer.problem.batch.cu_seqlens_k();
        starts_ = {0};
        for (size_t s = 0; s + 1 < tokens.size(); ++s)
            starts_.push_back(starts_.back() + (tokens[s + 1] - tokens[s]) / compress_);
        pieces_ = {};
        if (starts_.back() == 0) return;
        const View<const float, 2> all = reader_.keys(layer).host();
        const View<const float, 3> keys(all.data(), {all.extent(0), 1, all.extent(1)});
        Tensor<float, 2> pieces({starts_.back(), all.extent(1)});
        for (size_t s = 0; s + 1 < tokens.size(); ++s)
            for (int64_t n = 0; n < starts_[s + 1] - starts_[s]; ++n)
                mean_of_keys(key_rows(keys, 0, tokens[s] + n * compress_, compress_),
                             pieces.view()[starts_[s] + n]);
        pieces_ = {layer.backend, std::move(pieces)};
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        LightningOperands operands = reader_.operands(layer, chunk);
        if (compress_ == 1)
            return {layer.backend, lightning_block_scores(layer.backend, chunk.problem, operands)};
        return {layer.backend, score_pieces(layer.backend, chunk.problem, std::move(operands))};
    }

private:
    /// The largest I of the pieces that begin in a block and that the query sees as a whole; -inf
    /// where there is none.
    Tensor<float, 3> score_pieces(Backend& backend, const Problem& p,
                                  LightningOperands operands) const {
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
        std::fill_n(scores.data(), scores.size(), -std::numeric_limits<float>::infinity());
        if (!pieces_) return scores;
        Problem pieces = p;
        std::vector<int64_t> newest;  // piece that each query sees as a whole
        for (const KeyRange& seen : visible_keys(p)) newest.push_back(seen.count / compress_ - 1);
        pieces.batch = PackedBatch(p.batch.cu_seqlens_q(), starts_, newest);
        pieces.window.reset();  // counts tokens
        operands.index_k = pieces_;
        for_each_lightning_row(
            backend, pieces, operands, [&](int64_t i, View<const float, 1> of_pieces) {
                for (int64_t n = 0; n < of_pieces.size(); ++n)
                    for (int64_t r = 0; r < p.kv_heads; ++r) {
                        float& score = scores(i, r, n * compress_ / p.block_size);
                        score = std::max(score, of_pieces(n));
                    }
            });
        return scores;
    }

    int64_t compress_ = 1;
    std::vector<int64_t> starts_;  // [S+1] first piece of each sequence
    Mirror<2> pieces_;             // [pieces, didx]
};

}  // namespace

std::unique_ptr<Selector> make_dsa_selector() { return std::make_unique<DsaSelector>(); }

}  // namespace msa
