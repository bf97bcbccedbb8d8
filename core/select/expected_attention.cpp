// SPDX-License-Identifier: MIT
// Of a normal query with mean m and covariance C, the expected exp(scale q . k) is
// exp(scale m . k + scale^2 k' C k / 2).
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/select/attention_rows.h"
#include "core/select/cost.h"
#include "core/select/selector.h"

namespace msa {
namespace {

constexpr int64_t kUnset = -1;

/// Mean [dh] and covariance [dh, dh] of some queries of one head.
struct QueryStatistics {
    QueryStatistics(View<const float, 3> q, int64_t first, int64_t head)
        : mean({q.extent(2)}), covariance({q.extent(2), q.extent(2)}) {
        const int64_t dims = q.extent(2);
        const auto count = static_cast<double>(q.extent(0) - first);
        std::vector<double> sums(static_cast<size_t>(dims), 0.0);
        for (int64_t i = first; i < q.extent(0); ++i)
            for (int64_t d = 0; d < dims; ++d)
                sums[static_cast<size_t>(d)] += double{q(i, head, d)};
        for (int64_t d = 0; d < dims; ++d)
            mean(d) = static_cast<float>(sums[static_cast<size_t>(d)] / count);
        std::vector<float> off(static_cast<size_t>(dims));
        for (int64_t i = first; i < q.extent(0); ++i) {
            for (int64_t d = 0; d < dims; ++d)
                off[static_cast<size_t>(d)] = q(i, head, d) - mean(d);
            for (int64_t d = 0; d < dims; ++d)
                for (int64_t e = 0; e < dims; ++e)
                    covariance(d, e) += off[static_cast<size_t>(d)] * off[static_cast<size_t>(e)];
        }
        for (int64_t at = 0; at < covariance.size(); ++at)
            covariance.data()[at] /= static_cast<float>(count);
    }

    /// ln E exp(scale q . k); without `spread`, scale E q . k.
    double log_expected(View<const float, 1> k, double scale, bool spread) const {
        double product = 0, variance = 0;
        for (int64_t d = 0; d < k.size(); ++d) product += double{mean(d)} * double{k(d)};
        if (!spread) return scale * product;
        std::vector<float> turned(static_cast<size_t>(k.size()), 0.0F);
        for (int64_t e = 0; e < k.size(); ++e) {
            const float of_key = k(e);
            const float* row = &covariance(e, 0);
            for (size_t d = 0; d < turned.size(); ++d) turned[d] += row[d] * of_key;
        }
        for (size_t d = 0; d < turned.size(); ++d)
            variance += double{turned[d]} * double{k(static_cast<int64_t>(d))};
        return scale * product + scale * scale * variance / 2;
    }

    Tensor<float, 1> mean;
    Tensor<float, 2> covariance;
};

float norm_of(View<const float, 1> v) {
    float squares = 0;
    for (int64_t d = 0; d < v.size(); ++d) squares += v(d) * v(d);
    return std::sqrt(squares);
}

class ExpectedAttentionSelector final : public Selector {
public:
    std::string_view name() const override { return "expected-attention"; }
    std::string_view rule() const override {
        return "softmax of the expected exp(q . k) over normal queries of the mean and covariance "
               "of the prompt's last 512, mean over the group's heads, times |v|, summed over the "
               "block; the first 4 tokens count as the best (Expected Attention, arXiv "
               "2510.00636). Prefill phase: observed anew for every query block";
    }
    std::string_view note() const override {
        return "queries after RoPE of the last 512 positions, in the source those of the whole "
               "prompt turned to the next 512; chosen anew for every query block, of which the "
               "source evicts tokens once, after the prompt";
    }
    std::vector<PolicyOption> options() override {
        return {{"window", "queries observed", &window_, 1, 1048576},
                {"sinks", "first tokens that count as the best", &sinks_, 0, 65536},
                {"covariance", "1: mean and covariance of the queries; 0: the mean alone",
                 &covariance_, 0, 1},
                {"values", "1: times |v|; 0: the probability alone", &values_, 0, 1}};
    }
    Family family() const override { return Family::queries; }
    Needs needs() const override { return {.queries = true, .values = true}; }
    PolicyCost cost(const Problem& phase, int64_t prompt) const override {
        const double dims = static_cast<double>(phase.head_dim) * (covariance_ != 0 ? 1 : 0);
        const double heads = 2 * static_cast<double>(phase.query_heads * phase.head_dim);
        PolicyCost cost;
        for (int64_t s = 0; s < phase.sequences(); ++s) {
            const int64_t length = sequence_length(phase, s);
            const int64_t step = prompt > 0 ? std::min(prompt, length) : phase.block_size;
            const int64_t last = prompt > 0 ? step : length - 1;
            for (int64_t end = step; step > 0 && end <= last; end += step) {
                const auto keys = static_cast<double>(end);
                const auto queries = static_cast<double>(std::min(window_, end));
                cost.flops += heads * (keys * (dims + 1) + queries * dims);
                cost.bytes += per_head(phase, keys * (values_ != 0 ? 2 : 1)).bytes;
            }
        }
        return cost;
    }

    void prepare(const SelectorLayer& layer) override {
        sequence_ = end_ = kUnset;
        norms_ = Tensor<float, 2>({layer.problem.kv_heads, layer.problem.keys()});
        const View<const float, 3> v = layer.v.host();
        for (int64_t r = 0; r < norms_.extent(0); ++r)
            for (int64_t j = 0; j < norms_.extent(1); ++j)
                norms_(r, j) = values_ != 0 ? norm_of(v[j][r]) : 1;
    }

    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange>& visible = visible_keys(p);
        const std::vector<int64_t> sequence = query_sequences(p);
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
        for (int64_t i = 0; i < p.queries(); ++i) {
            const auto row = static_cast<size_t>(i);
            const int64_t seen = visible[row].count;
            if (seen == 0) continue;
            const int64_t end = layer.prompt > 0 ? prompt_length(layer, sequence[row])
                                                 : (seen - 1) / p.block_size * p.block_size;
            observe(layer, sequence[row], end);
            if (end == 0) continue;
            for (int64_t r = 0; r < p.kv_heads; ++r)
                for (int64_t b = 0; b < visible_blocks(seen, p.block_size); ++b) {
                    const int64_t first = b * p.block_size;
                    const int64_t last = std::min(first + p.block_size, seen);
                    scores(i, r, b) = static_cast<float>(sums_(r, last) - sums_(r, first));
                }
        }
        return {layer.backend, std::move(scores)};
    }

    /// The source never evicts the first tokens.
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        return sinks_ > 0 ? force(asked, 1, 1) : asked;
    }

private:
    /// Sets sums_ by the queries before position `end`; probabilities are normalised over the keys
    /// before it.
    void observe(const SelectorLayer& layer, int64_t sequence, int64_t end) {
        if (sequence == sequence_ && end == end_) return;
        sequence_ = sequence;
        end_ = end;
        if (end == 0) return;
        const Problem& p = layer.problem;
        const int64_t begin = std::max<int64_t>(0, end - window_);
        const Mirror<3> rows = layer.read_q(sequence_tokens(p, sequence, {begin, end}));
        const View<const float, 3> q = rows.host();
        // The source's mean leaves the first tokens out, where there are others.
        const int64_t first = std::clamp<int64_t>(sinks_ - begin, 0, end - begin - 1);
        const int64_t all = sequence_length(p, sequence), start = sequence_start(p, sequence);
        // No query of a block sees a key behind it.
        const int64_t length = layer.prompt > 0 ? all : std::min(end + p.block_size, all);
        Tensor<double, 2> weights({p.kv_heads, length});
        for (int64_t h = 0; h < p.query_heads; ++h)
            add_head(layer, QueryStatistics(q, first, h), h / p.group_size(), start, end, weights);
        double most = 0;
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t j = 0; j < length; ++j) {
                weights(r, j) *= double{norms_(r, start + j)};
                if (j >= sinks_ && j < end) most = std::max(most, weights(r, j));
            }
        sums_ = Tensor<double, 2>({p.kv_heads, length + 1});
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t j = 0; j < length; ++j)
                sums_(r, j + 1) = sums_(r, j) + (j < sinks_ ? most : weights(r, j));
    }

    /// Adds one head's probabilities of all keys of a sequence, over the group's heads.
    void add_head(const SelectorLayer& layer, const QueryStatistics& of, int64_t group,
                  int64_t start, int64_t end, Tensor<double, 2>& weights) const {
        const Problem& p = layer.problem;
        const View<const float, 3> k = layer.k.host();
        std::vector<double> logits(static_cast<size_t>(weights.extent(1)));
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t j = 0; j < weights.extent(1); ++j)
            logits[static_cast<size_t>(j)] =
                of.log_expected(k[start + j][group], p.softmax_scale(), covariance_ != 0);
        // The source's softmax leaves the first tokens out, too.
        const int64_t first = std::min(sinks_, end - 1);
        const double top = *std::max_element(logits.begin() + first, logits.begin() + end);
        double all = 0;
        for (int64_t j = first; j < end; ++j) all += std::exp(logits[static_cast<size_t>(j)] - top);
        for (int64_t j = 0; j < weights.extent(1); ++j)
            weights(group, j) += std::exp(logits[static_cast<size_t>(j)] - top) / all /
                                 static_cast<double>(p.group_size());
    }

    int64_t window_ = 512, sinks_ = 4, covariance_ = 1, values_ = 1;
    int64_t sequence_ = kUnset, end_ = kUnset;
    Tensor<float, 2> norms_;  // [Hkv, Nk] |v|
    Tensor<double, 2> sums_;  // [Hkv, tokens + 1] of the weights of the keys before
};

}  // namespace

std::unique_ptr<Selector> make_expected_attention_selector() {
    return std::make_unique<ExpectedAttentionSelector>();
}

}  // namespace msa
