// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/select/attention_rows.h"

namespace msa {
namespace {

constexpr int64_t kWindow = 32;       // observing queries, and keys always kept
constexpr int64_t kPoolReach = 3;     // of the maximum over 7 neighbours
constexpr float kInWindow = 0x1p20F;  // above any vote
constexpr int64_t kUnset = -1;

class SnapKvSelector final : public Selector {
public:
    std::string_view name() const override { return "snapkv"; }
    std::string_view rule() const override {
        return "attention that the last 32 queries of the prompt paid to each key, mean over the "
               "group's heads, maximum over 7 neighbours, summed over the block; their own blocks "
               "and newer ones first (SnapKV, arXiv 2404.14469). Prefill phase: observed anew "
               "every 32 queries";
    }
    Needs needs() const override { return {.queries = true}; }

    void prepare(const SelectorLayer& layer) override {
        end_ = kUnset;
        votes_ = Tensor<float, 2>({layer.problem.kv_heads, layer.problem.blocks()});
    }

    void score(const SelectorLayer& layer, const SelectorChunk& chunk,
               View<float, 3> scores) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange> visible = visible_keys(p);
        const std::vector<int64_t> sequence = query_sequences(p);
        for (int64_t i = 0; i < p.queries(); ++i) {
            const int64_t position = visible[static_cast<size_t>(i)].count - 1;
            if (position < 0) continue;
            const bool decoded = layer.prompt > 0 && position >= layer.prompt;
            observe(layer, sequence[static_cast<size_t>(i)],
                    decoded ? layer.prompt : position / kWindow * kWindow);
            for (int64_t r = 0; r < p.kv_heads; ++r)
                for (int64_t b = 0; b <= position / p.block_size; ++b) {
                    const bool voted = (b + 1) * p.block_size <= end_ - kWindow;
                    scores(i, r, b) = voted ? votes_(r, b) : kInWindow + static_cast<float>(b);
                }
        }
    }

private:
    /// Votes of the queries [end - kWindow, end) for the keys before them.
    void observe(const SelectorLayer& layer, int64_t sequence, int64_t end) {
        if (sequence == sequence_ && end == end_) return;
        sequence_ = sequence;
        end_ = end;
        const Problem& p = layer.problem;
        const int64_t voted = end - kWindow;
        if (voted <= 0) return;
        Tensor<float, 2> received({p.kv_heads, voted});
        for_each_attention_row(layer, sequence_tokens(p, sequence, {voted, end}), kAllKeys,
                               [&](const AttentionRow& row) {
                                   const int64_t r = row.head / p.group_size();
                                   for (int64_t j = 0; j < voted; ++j)
                                       received(r, j) += row.weights[j];
                               });
        std::fill_n(votes_.data(), votes_.size(), 0.0F);
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t j = 0; j < voted; ++j) {
                const float* from = &received(r, std::max<int64_t>(0, j - kPoolReach));
                const float* to = &received(r, 0) + std::min(voted, j + kPoolReach + 1);
                votes_(r, j / p.block_size) +=
                    *std::max_element(from, to) / static_cast<float>(p.group_size());
            }
    }

    int64_t sequence_ = kUnset, end_ = kUnset;
    Tensor<float, 2> votes_;  // [Hkv, B]
};

}  // namespace

std::unique_ptr<Selector> make_snapkv_selector() { return std::make_unique<SnapKvSelector>(); }

}  // namespace msa
