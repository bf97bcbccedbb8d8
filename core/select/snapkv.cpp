// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/select/attention_rows.h"
#include "core/select/best_blocks.h"
#include "core/select/cost.h"
#include "core/select/per_rule.h"
#include "core/select/selector.h"

namespace msa {
namespace {

constexpr float kInWindow = 0x1p20F;  // above any vote
constexpr int64_t kUnread = -1;

class SnapKvSelector final : public Selector {
public:
    std::string_view name() const override { return "snapkv"; }
    std::string_view rule() const override {
        return "attention that the last 32 queries of the prompt paid to each key, mean over the "
               "group's heads, maximum over 7 neighbours, summed over the block; their own blocks "
               "first, and all newer ones beside the budget (SnapKV, arXiv 2404.14469). Prefill "
               "phase: observed anew every 32 queries, newer blocks inside the budget";
    }
    std::string_view note() const override {
        return "in the decode phase new tokens come on top of the budget, as in the source; the "
               "source leaves prefill dense. A budget of no more blocks than the 32 observing "
               "queries touch keeps the newest blocks alone";
    }
    std::vector<PolicyOption> options() override {
        return {{"window", "observing queries, and keys always kept", &window_, 1, 65536},
                {"pool", "neighbouring keys of which the most noticed votes", &pool_, 1, 65535}};
    }
    Family family() const override { return Family::queries; }
    Needs needs() const override { return {.queries = true, .decode_rule = true}; }
    PolicyCost do_cost(const Phase& phase) const override {
        if (phase.prompt > 0) return probe_cost(phase.problem, window_, phase.prompt);
        const PolicyCost all = oracle_cost(phase.problem);  // every query is of some window
        return {all.flops, all.bytes / static_cast<double>(window_)};
    }

    void prepare(const SelectorLayer& layer) override {
        end_ = kUnread;
        votes_ = Tensor<float, 2>({layer.problem.kv_heads, layer.problem.blocks()});
        prompts_.clear();
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange>& visible = visible_keys(p);
        const std::vector<int64_t> sequence = query_sequences(p);
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
        for (int64_t i = 0; i < p.queries(); ++i) {
            const int64_t position = visible[static_cast<size_t>(i)].count - 1;
            if (position < 0) continue;
            const Tensor<float, 2>& votes =
                votes_of(layer, sequence[static_cast<size_t>(i)], position);
            for (int64_t r = 0; r < p.kv_heads; ++r)
                for (int64_t b = 0; b <= position / p.block_size; ++b)
                    scores(i, r, b) =
                        in_window(p, b) ? kInWindow + static_cast<float>(b) : votes(r, b);
        }
        return {layer.backend, std::move(scores)};
    }
    SelectionRule adjust(SelectionRule asked, int64_t prompt) const override {
        if (prompt > 0) asked.top_k = kUneven;
        return asked;
    }

private:
    /// What a budget keeps of a sequence's prompt.
    struct Compressed {
        int64_t sequence = kUnread;
        Tensor<float, 2> votes;  // [Hkv, B]
    };

    /// Votes [Hkv, B] for the query at `position`.
    const Tensor<float, 2>& votes_of(const SelectorLayer& layer, int64_t sequence,
                                     int64_t position) {
        if (layer.prompt == 0) {
            observe(layer, sequence, position / window_ * window_);
            return votes_;
        }
        Compressed& prompt = prompts_[layer.rule];
        if (prompt.sequence == sequence) return prompt.votes;
        observe(layer, sequence, layer.prompt);
        prompt = {sequence, Tensor<float, 2>(votes_.shape())};
        std::copy_n(votes_.data(), votes_.size(), prompt.votes.data());
        for (int64_t r = 0; r < layer.problem.kv_heads && end_ > window_; ++r)
            compress(layer, prompt.votes.view()[r]);
        return prompt.votes;
    }

    /// Is the block the observing queries', or a newer one?
    bool in_window(const Problem& p, int64_t b) const {
        return (b + 1) * p.block_size > end_ - window_;
    }

    /// Votes of the queries [end - window_, end) for the keys before them.
    void observe(const SelectorLayer& layer, int64_t sequence, int64_t end) {
        if (sequence == sequence_ && end == end_) return;
        sequence_ = sequence;
        end_ = end;
        const Problem& p = layer.problem;
        const int64_t voted = end - window_;
        if (voted <= 0) return;
        Tensor<float, 2> received({p.kv_heads, voted});
        for_each_mass(layer, sequence_tokens(p, sequence, {voted, end}), 1,
                      [&](int64_t, View<const float, 3> mass) {
                          for (int64_t n = 0; n < mass.extent(0); ++n)
                              for (int64_t r = 0; r < p.kv_heads; ++r)
                                  for (int64_t j = 0; j < voted; ++j)
                                      received(r, j) += mass(n, r, j);
                      });
        std::fill_n(votes_.data(), votes_.size(), 0.0F);
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t j = 0; j < voted; ++j) {
                const float* from = &received(r, std::max<int64_t>(0, j - pool_ / 2));
                const float* to = &received(r, 0) + std::min(voted, j - pool_ / 2 + pool_);
                votes_(r, j / p.block_size) += *std::max_element(from, to);
            }
    }

    /// The prompt's blocks that the budget has no room for are gone.
    void compress(const SelectorLayer& layer, View<float, 1> votes) const {
        const Problem& p = layer.problem;
        const int64_t blocks = visible_blocks(layer.prompt, p.block_size);
        int64_t room = layer.rule.top_k;
        std::vector<int64_t> voted;
        for (int64_t b = 0; b < blocks; ++b) {
            if (in_window(p, b) || b < layer.rule.forced_first)
                --room;
            else
                voted.push_back(b);
        }
        for (int64_t b : all_but_best(std::move(voted), room, votes)) votes(b) = kLeftOut;
    }

    int64_t window_ = 32, pool_ = 7;
    int64_t sequence_ = kUnread, end_ = kUnread;
    Tensor<float, 2> votes_;  // [Hkv, B]
    PerRule<Compressed> prompts_;
};

}  // namespace

std::unique_ptr<Selector> make_snapkv_selector() { return std::make_unique<SnapKvSelector>(); }

}  // namespace msa
