// SPDX-License-Identifier: MIT
// Attention to pieces of the keys, by which NSA and InfLLM-V2 rank blocks. A piece is the mean of
// `tokens` keys, one every `stride` keys. Uses the backend's block_mass with the pieces as keys.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/select/selector.h"

namespace msa {

/// Pieces of `tokens` keys, one every `stride`.
struct Pieces {
    int64_t tokens = 32, stride = 16;

    /// How many pieces lie within the first `keys` keys.
    int64_t whole(int64_t keys) const { return keys < tokens ? 0 : (keys - tokens) / stride + 1; }
    /// The first piece that ends after key `begin`, where a block begins.
    int64_t first_ending_after(int64_t begin) const {
        return begin < tokens ? 0 : (begin - tokens) / stride + 1;
    }
    /// Tokens that piece n and the block [begin, end) have in common.
    int64_t shared(int64_t n, int64_t begin, int64_t end) const {
        const int64_t first = n * stride, last = first + tokens;
        return std::max<int64_t>(0, std::min(end, last) - std::max(begin, first));
    }
};

class CompressedKeys {
public:
    /// A block's score, divided by G, from the attention to each piece (mean over the group's
    /// heads), the block's first token and its end.
    using Fold = float (*)(const Pieces&, std::span<const float> attention, int64_t begin,
                           int64_t end);

    CompressedKeys(const SelectorLayer&, const Pieces&);
    /// Scores [Nq, Hkv, B] on the host. Each head's softmax is over the pieces that its query sees
    /// wholly.
    Mirror<3> score(const SelectorLayer&, const SelectorChunk&, Fold fold) const;

private:
    void score_part(Backend&, const Problem& part, View<const float, 3> q, Fold fold,
                    View<float, 3> scores) const;

    Pieces of_;
    std::vector<int64_t> starts_;  // [S+1] first piece of each sequence
    Mirror<3> pieces_;             // [pieces, Hkv, dh]
};

/// Base of policies that rank blocks by the attention to their pieces. A derived class gives name,
/// rule, the fold of pieces to a block's score, and the forced blocks.
class CompressedKeysSelector : public Selector {
public:
    explicit CompressedKeysSelector(CompressedKeys::Fold fold) : fold_(fold) {}
    std::vector<PolicyOption> options() override {
        return {{"piece", "keys of a piece", &of_.tokens, 1, 65536},
                {"stride", "keys from one piece to the next", &of_.stride, 1, 65536}};
    }
    Family family() const override { return Family::keys; }
    /// Products of q with each piece, for all queries.
    PolicyCost do_cost(const Phase& phase) const override;
    void prepare(const SelectorLayer& layer) override { pieces_.emplace(layer, of_); }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        return pieces_->score(layer, chunk, fold_);
    }

private:
    CompressedKeys::Fold fold_;
    Pieces of_;
    std::optional<CompressedKeys> pieces_;
};

}  // namespace msa
