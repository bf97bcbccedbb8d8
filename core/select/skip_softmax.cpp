// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/select/attention_rows.h"
#include "core/select/best_blocks.h"
#include "core/select/cost.h"
#include "core/select/per_rule.h"
#include "core/select/rows_held.h"
#include "core/select/selector.h"

namespace msa {
namespace {

constexpr double kPerNat = 4096, kMostNats = 64;  // thresholds that a budget finds, on either side
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Gap of a block that is kept whatever lambda is: the first one, and any with a NaN.
constexpr float kAlways = std::numeric_limits<float>::max();

/// gaps[b]: at least the row's largest logit of block b less its largest logit of the blocks
/// before.
void raise_gaps(View<const float, 1> largest, int64_t blocks, View<float, 1> gaps) {
    double before = -kInfinity;
    for (int64_t b = 0; b < blocks; ++b) {
        const double top = largest(b), gap = top - before;
        gaps(b) = std::max(gaps(b), gap < kInfinity ? static_cast<float>(gap) : kAlways);
        before = std::fmax(before, top);
    }
}

/// Finds the threshold for a budget. All blocks of a depth up to the threshold are kept.
class DepthBudget {
public:
    DepthBudget(const SelectionRule& rule, double sparsity) : rule_(rule), sparsity_(sparsity) {}

    /// A row's blocks, given depth(b).
    template <typename Depth>
    void add(int64_t blocks, Depth depth) {
        allowed_ += sparsity_ > 0 ? blocks : std::min(blocks, rule_.top_k);
        for (int64_t b = 0; b < blocks; ++b)
            if (is_forced(rule_, b, blocks))
                ++forced_;
            else
                ++counts_[static_cast<size_t>(std::ceil(
                    (std::clamp(depth(b), -kMostNats, kMostNats) + kMostNats) * kPerNat))];
    }
    /// The largest threshold, a multiple of 1 / kPerNat, at which all rows together keep no more
    /// than they may.
    double limit() const {
        auto left = static_cast<int64_t>((1 - sparsity_) * static_cast<double>(allowed_)) - forced_;
        size_t count = 0;
        while (count < counts_.size() && counts_[count] <= left) left -= counts_[count++];
        if (count == 0) return -kInfinity;
        if (count == counts_.size()) return kInfinity;
        return static_cast<double>(count - 1) / kPerNat - kMostNats;
    }
    const SelectionRule& rule() const { return rule_; }

private:
    SelectionRule rule_;
    double sparsity_;
    int64_t allowed_ = 0, forced_ = 0;  // blocks
    std::vector<int64_t> counts_ =
        std::vector<int64_t>(static_cast<size_t>(2 * kPerNat * kMostNats) + 1);
};

class SkipSoftmaxSelector final : public Selector {
public:
    std::string_view name() const override { return "skip-softmax"; }
    std::vector<std::string_view> other_names() const override { return {"blasst"}; }
    std::string_view rule() const override {
        return "the blocks whose largest Main Branch logit, in any of the group's heads, is at "
               "least the head's largest logit of the blocks before plus ln(lambda); one lambda x "
               "context length for all groups of the layer, so that the queries that averages "
               "count keep the budget on average (BLASST, arXiv 2512.12087)";
    }
    std::string_view note() const override {
        return "the threshold is fitted to all sequences together; it needs every product q . k, "
               "which is its cost and which attention then need not compute again: it saves the "
               "exponentials and the products with v alone";
    }
    std::vector<PolicyOption> options() override {
        return {{"scale", "lambda times the context length, whatever the budget; 0: calibrated",
                 &scale_, 0, 1e15},
                {"sparsity",
                 "share of the visible blocks to skip, whatever the budget; 0: as many as the "
                 "budget wants",
                 &sparsity_, 0, 1},
                {"tile",
                 "neighbouring queries of a prefill, none of which may need a block that is "
                 "skipped",
                 &tile_, 1, kMaxBlockSize}};
    }
    Family family() const override { return Family::oracle; }
    Needs needs() const override { return {.queries = true, .rule = true}; }
    PolicyCost do_cost(const Phase& phase) const override { return oracle_cost(phase.problem); }

    void prepare(const SelectorLayer& layer) override {
        if (scale_ > 0 && sparsity_ > 0)
            throw InputError(concat("skip-softmax: scale (", scale_, ") and sparsity (", sparsity_,
                                    ") both set the threshold: give one of them"));
        const Problem& p = layer.problem;
        highest_ = std::log(static_cast<double>(p.batch.longest_keys()));
        limit_.clear();
        for (const SelectionRule& rule : layer.all_rules())
            limit_[rule] = highest_ - std::log(scale_);
        if (scale_ > 0) return;
        std::vector<DepthBudget> budgets;
        for (const SelectionRule& rule : layer.all_rules()) budgets.emplace_back(rule, sparsity_);
        const std::vector<int64_t> tokens = counted_tokens(layer);
        const int64_t step = rows_held(p.kv_heads * p.blocks());
        for (int64_t first = 0; first < std::ssize(tokens); first += step) {
            const auto some = std::span(tokens).subspan(
                static_cast<size_t>(first),
                static_cast<size_t>(std::min(step, std::ssize(tokens) - first)));
            const Tensor<float, 3> gaps = gaps_of(layer, some, layer.read_q(some));
#pragma omp parallel for num_threads(layer.backend.host_threads())
            for (DepthBudget& budget : budgets) add(layer, some, gaps, budget);
        }
        for (const DepthBudget& budget : budgets) limit_[budget.rule()] = budget.limit();
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange>& visible = visible_keys(p);
        Tensor<float, 3> scores = gaps_of(layer, chunk.tokens, chunk.q);
        const double limit = limit_[layer.rule];
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i) {
            const auto row = static_cast<size_t>(i);
            const int64_t blocks = visible_blocks(visible[row].count, p.block_size);
            for (int64_t r = 0; r < p.kv_heads; ++r)
                for (int64_t b = 0; b < blocks; ++b) {
                    float& score = scores(i, r, b);
                    const bool kept = is_forced(layer.rule, b, blocks) ||
                                      depth(layer, chunk.tokens[row], score) <= limit;
                    score = kept ? std::max(score, std::numeric_limits<float>::lowest()) : kLeftOut;
                }
        }
        return {layer.backend, std::move(scores)};
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        asked.top_k = kUneven;
        return asked;
    }

private:
    /// How far gap + ln(context length) lies below what a new maximum in the longest sequence has.
    /// A block is kept where gap >= ln(lambda), and lambda is scale / context length.
    double depth(const SelectorLayer& layer, int64_t token, float gap) const {
        const Problem& p = layer.problem;
        const int64_t context = layer.prompt > 0 ? position_of(p, token) + 1
                                                 : sequence_length(p, sequence_of(p, token));
        return highest_ - (double{gap} + std::log(static_cast<double>(context)));
    }

    void add(const SelectorLayer& layer, std::span<const int64_t> tokens,
             const Tensor<float, 3>& gaps, DepthBudget& budget) const {
        const Problem& p = layer.problem;
        for (size_t i = 0; i < tokens.size(); ++i) {
            const int64_t blocks = visible_blocks(position_of(p, tokens[i]) + 1, p.block_size);
            for (int64_t r = 0; r < p.kv_heads; ++r)
                budget.add(blocks, [&](int64_t b) {
                    return depth(layer, tokens[i], gaps(static_cast<int64_t>(i), r, b));
                });
        }
    }

    /// [n, Hkv, B] of the queries `tokens`, which are q: the highest gap of each block in any head
    /// of the group and any query of the tile.
    Tensor<float, 3> gaps_of(const SelectorLayer& layer, std::span<const int64_t> tokens,
                             const Mirror<3>& q) const {
        if (tile_ == 1 || layer.prompt > 0) return gaps_of_rows(layer, tokens, q);
        const Problem& p = layer.problem;
        Tensor<float, 3> gaps({std::ssize(tokens), p.kv_heads, p.blocks()});
        const int64_t row = p.kv_heads * p.blocks();
        for (size_t i = 0; i < tokens.size();) {
            const int64_t s = sequence_of(p, tokens[i]), first = sequence_start(p, s);
            const int64_t begin = (tokens[i] - first) / tile_ * tile_,
                          end = std::min(begin + tile_, sequence_length(p, s));
            const std::vector<int64_t> all = sequence_tokens(p, s, {begin, end});
            const Tensor<float, 3> rows = gaps_of_rows(layer, all, layer.read_q(all));
            std::vector<float> highest(rows.data(), rows.data() + row);
            for (int64_t n = row; n < rows.size(); ++n) {
                float& most = highest[static_cast<size_t>(n % row)];
                most = std::max(most, rows.data()[n]);
            }
            for (; i < tokens.size() && tokens[i] < first + end; ++i)
                std::copy_n(highest.data(), row, gaps.view()[static_cast<int64_t>(i)].data());
        }
        return gaps;
    }

    /// The same of each query alone. Blocks that it does not see have -inf.
    static Tensor<float, 3> gaps_of_rows(const SelectorLayer& layer,
                                         std::span<const int64_t> tokens, const Mirror<3>& q) {
        Problem one_head = layer.problem.with_query_rows(tokens);
        one_head.query_heads = one_head.kv_heads;
        const int64_t group_size = layer.problem.group_size(), groups = one_head.kv_heads;
        const std::vector<KeyRange>& visible = visible_keys(one_head);
        const Shape<3> shape{one_head.queries(), groups, one_head.blocks()};
        Tensor<float, 3> gaps(shape);
        std::fill_n(gaps.data(), gaps.size(), kLeftOut);
        const View<const float, 3> all = q.host();
        for (int64_t head = 0; head < group_size; ++head) {
            Tensor<float, 3> rows({one_head.queries(), groups, one_head.head_dim});
            for (int64_t i = 0; i < one_head.queries(); ++i)
                for (int64_t r = 0; r < groups; ++r)
                    std::copy_n(all[i][r * group_size + head].data(), one_head.head_dim,
                                &rows(i, r, 0));
            const Mirror<3> mine(layer.backend, std::move(rows));
            auto mass = layer.backend.make<float, 3>(shape),
                 largest = layer.backend.make<float, 3>(shape);
            layer.backend.block_mass(one_head, {mine.floats(), layer.k.floats(), {}},
                                     {mass, largest});
            const Mirror<3> of_blocks(layer.backend, std::move(largest));
            const View<const float, 3> logits = of_blocks.host();
#pragma omp parallel for num_threads(layer.backend.host_threads())
            for (int64_t i = 0; i < one_head.queries(); ++i)
                for (int64_t r = 0; r < groups; ++r)
                    raise_gaps(
                        logits[i][r],
                        visible_blocks(visible[static_cast<size_t>(i)].count, one_head.block_size),
                        gaps.view()[i][r]);
        }
        return gaps;
    }

    double scale_ = 0, sparsity_ = 0;
    int64_t tile_ = 1;
    double highest_ = 0;     // ln of the longest sequence
    PerRule<double> limit_;  // largest depth that is kept
};

}  // namespace

std::unique_ptr<Selector> make_skip_softmax_selector() {
    return std::make_unique<SkipSoftmaxSelector>();
}

}  // namespace msa
