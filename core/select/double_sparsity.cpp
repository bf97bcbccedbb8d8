// SPDX-License-Identifier: MIT
// The labels, few channels of keys and queries, are keys and queries of their own: the source
// chooses channels for each query head, so that each head has its own label keys.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "core/select/attention_rows.h"
#include "core/select/cost.h"
#include "core/select/quantised.h"
#include "core/select/rows_held.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class DoubleSparsitySelector final : public Selector {
public:
    std::string_view name() const override { return "double-sparsity"; }
    std::string_view rule() const override {
        return "attention by each head's label channels, the quarter of largest |q k| of a token's "
               "own query and key, mean over the first 512 tokens of every sequence, in 4 bits; "
               "summed over the block, mean over the group's heads (Double Sparsity, arXiv "
               "2408.07092)";
    }
    std::string_view note() const override {
        return "channels are calibrated on the beginning of all sequences of the capture itself, "
               "in the source on other text; the source keeps tokens";
    }
    std::vector<PolicyOption> options() override {
        return {{"rank", "label channels; 0: one of 4", &rank_, 0, kMaxHeadDim},
                {"bits", "of a label; 16: as it is", &bits_, 1, kUnquantised},
                {"calibration", "tokens of a sequence that decide on the channels", &calibration_,
                 1, 1048576}};
    }
    Family family() const override { return Family::keys; }
    Needs needs() const override { return {.queries = true}; }
    PolicyCost do_cost(const Phase& phase) const override {
        const double share =
            static_cast<double>(rank(phase.problem)) / static_cast<double>(phase.problem.head_dim);
        PolicyCost labels = per_head(phase.problem, share * keys_seen(phase.problem));
        // Every head reads its own label keys.
        labels.bytes *= static_cast<double>(phase.problem.group_size() * bits_) / 16;
        return labels;
    }

    void prepare(const SelectorLayer& layer) override {
        const Problem& p = layer.problem;
        calibrate(layer);
        const View<const float, 3> k = layer.k.host();
        Tensor<float, 3> labels({p.keys(), p.query_heads, width(p)});
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t j = 0; j < p.keys(); ++j)
            for (int64_t h = 0; h < p.query_heads; ++h)
                make_label(h, k[j][h / p.group_size()], labels.view()[j][h]);
        if (p.keys() > 0) labels_ = {layer.backend, std::move(labels)};
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
        const int64_t step = rows_held(p.query_heads * p.blocks());
        for (int64_t begin = 0; labels_ && begin < p.queries(); begin += step) {
            const QueryRange range{begin, std::min(begin + step, p.queries())};
            const int64_t count = range.end - begin;
            score_part(layer, p.with_queries(range), chunk.q.host().slice(begin, count),
                       scores.view().slice(begin, count));
        }
        return {layer.backend, std::move(scores)};
    }

private:
    int64_t rank(const Problem& p) const {
        return std::clamp<int64_t>(rank_ == 0 ? p.head_dim / 4 : rank_, 1, p.head_dim);
    }
    int64_t width(const Problem& p) const { return std::max(kMinHeadDim, rank(p)); }

    /// Sets the channels of each head, best first; of equal ones the lower comes first.
    void calibrate(const SelectorLayer& layer) {
        const Problem& p = layer.problem;
        std::vector<int64_t> tokens;
        for (int64_t s = 0; s < p.sequences(); ++s)
            for (int64_t token :
                 sequence_tokens(p, s, {0, std::min(calibration_, prompt_length(layer, s))}))
                tokens.push_back(token);
        const Mirror<3> rows = layer.read_q(tokens);
        const View<const float, 3> q = rows.host(), k = layer.k.host();
        Tensor<double, 2> sums({p.query_heads, p.head_dim});
        for (int64_t n = 0; n < std::ssize(tokens); ++n)
            for (int64_t h = 0; h < p.query_heads; ++h)
                for (int64_t d = 0; d < p.head_dim; ++d)
                    sums(h, d) +=
                        std::fabs(double{q(n, h, d)} *
                                  double{k(tokens[static_cast<size_t>(n)], h / p.group_size(), d)});
        channels_.clear();
        for (int64_t h = 0; h < p.query_heads; ++h) {
            std::vector<int64_t> order(static_cast<size_t>(p.head_dim));
            std::iota(order.begin(), order.end(), 0);
            std::stable_sort(order.begin(), order.end(),
                             [&](int64_t a, int64_t b) { return sums(h, a) > sums(h, b); });
            order.resize(static_cast<size_t>(rank(p)));
            channels_.push_back(std::move(order));
        }
    }

    /// label [width]: the channels of head h, and 0 behind them.
    void make_label(int64_t h, View<const float, 1> of, View<float, 1> label) const {
        const std::vector<int64_t>& channels = channels_[static_cast<size_t>(h)];
        for (size_t n = 0; n < channels.size(); ++n)
            label(static_cast<int64_t>(n)) = of(channels[n]);
        quantise({label.data(), channels.size()}, bits_);
    }

    void score_part(const SelectorLayer& layer, const Problem& p, View<const float, 3> q,
                    View<float, 3> scores) const {
        Tensor<float, 3> labels({p.queries(), p.query_heads, width(p)});
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i)
            for (int64_t h = 0; h < p.query_heads; ++h) make_label(h, q[i][h], labels.view()[i][h]);
        const Mirror<3> queries(layer.backend, std::move(labels));
        Problem of_heads = p;
        of_heads.kv_heads = p.query_heads;
        of_heads.head_dim = width(p);
        of_heads.softmax_scale_override =
            p.softmax_scale() *
            std::sqrt(static_cast<double>(p.head_dim) / static_cast<double>(rank(p)));
        auto there = layer.backend.make<float, 3>({p.queries(), p.query_heads, p.blocks()});
        layer.backend.block_mass(of_heads, {queries.floats(), labels_.floats(), layer.sinks},
                                 {there, {}});
        const Mirror<3> mass(layer.backend, std::move(there));
        const View<const float, 3> from = mass.host();
        const auto heads = static_cast<float>(p.group_size());
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i)
            for (int64_t h = 0; h < p.query_heads; ++h)
                for (int64_t b = 0; b < p.blocks(); ++b)
                    scores(i, h / p.group_size(), b) += from(i, h, b) / heads;
    }

    int64_t rank_ = 0, bits_ = 4, calibration_ = 512;
    std::vector<std::vector<int64_t>> channels_;  // [Hq] of [rank]
    Mirror<3> labels_;                            // [Nk, Hq, width]
};

}  // namespace

std::unique_ptr<Selector> make_double_sparsity_selector() {
    return std::make_unique<DoubleSparsitySelector>();
}

}  // namespace msa
