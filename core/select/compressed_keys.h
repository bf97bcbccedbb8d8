// SPDX-License-Identifier: MIT
// Attention to pieces of the keys: means of 32 tokens, every 16 tokens. What NSA and InfLLM-V2 rank
// blocks by: the backend's block_mass with the pieces as keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/select/selector.h"

namespace msa {

inline constexpr int64_t kPieceTokens = 32, kPieceStride = 16;

/// Pieces that lie within `tokens` tokens.
constexpr int64_t whole_pieces(int64_t tokens) {
    return tokens < kPieceTokens ? 0 : (tokens - kPieceTokens) / kPieceStride + 1;
}

/// Tokens that piece n and the block [begin, end) have in common.
constexpr int64_t shared_tokens(int64_t piece, int64_t begin, int64_t end) {
    const int64_t first = piece * kPieceStride, last = first + kPieceTokens;
    return std::max<int64_t>(0, std::min(end, last) - std::max(begin, first));
}

class CompressedKeys {
public:
    /// From (attention to each piece, mean over the group's heads; first token of the block; its
    /// end): the block's score over G.
    using Fold = float (*)(std::span<const float> attention, int64_t begin, int64_t end);

    explicit CompressedKeys(const SelectorLayer&);
    /// Scores [Nq, Hkv, B] on the host: each head's softmax over the pieces that its query sees as
    /// a whole.
    Mirror<3> score(const SelectorLayer&, const SelectorChunk&, Fold fold) const;

private:
    void score_part(Backend&, const Problem& part, View<const float, 3> q, Fold fold,
                    View<float, 3> scores) const;

    std::vector<int64_t> starts_;  // [S+1] first piece of each sequence
    Mirror<3> pieces_;             // [pieces, Hkv, dh]
};

/// A policy that ranks blocks by the attention to their pieces: what is left to say is its name,
/// its rule, what makes a block's score of its pieces, and the forced blocks.
class CompressedKeysSelector : public Selector {
public:
    explicit CompressedKeysSelector(CompressedKeys::Fold fold) : fold_(fold) {}
    Family family() const override { return Family::keys; }
    /// q . each piece, and the softmax's bytes, for all queries.
    PolicyCost cost(const Problem& phase, int64_t prompt) const override;
    void prepare(const SelectorLayer& layer) override { pieces_.emplace(layer); }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        return pieces_->score(layer, chunk, fold_);
    }

private:
    CompressedKeys::Fold fold_;
    std::optional<CompressedKeys> pieces_;
};

}  // namespace msa
