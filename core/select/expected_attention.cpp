// SPDX-License-Identifier: MIT
// Of a normal query with mean m and covariance C, the expected exp(scale q . k) is
// exp(scale m . k + scale^2 k' C k / 2).
#include <algorithm>
#include <cmath>
#include <vector>

#include "core/indexer/projection.h"
#include "core/select/attention_rows.h"
#include "core/select/cost.h"
#include "core/select/selector.h"

namespace msa {
namespace {

constexpr int64_t kUnset = -1;
constexpr int64_t kQueriesRead = 1024;  // at a time

/// The rotation of a pair, averaged over positions.
struct MeanTurn {
    double cosine = 0, sine = 0;
};

/// The mean turn of every pair of channels over positions [begin, begin + count).
std::vector<MeanTurn> mean_turns(const RopePairs& rope, int64_t begin, int64_t count) {
    std::vector<MeanTurn> turns(rope.frequencies.size());
    for (size_t c = 0; c < turns.size(); ++c)
        for (int64_t t = begin; t < begin + count; ++t) {
            const double angle = static_cast<double>(t) * rope.frequencies[c];
            turns[c].cosine += std::cos(angle) / static_cast<double>(count);
            turns[c].sine += std::sin(angle) / static_cast<double>(count);
        }
    return turns;
}

/// Mean [dh] and covariance [dh, dh] of the queries of one head.
struct QueryStatistics {
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

/// Sums over the queries of a sequence, which come one after the other, before RoPE.
class QueryMoments {
public:
    QueryMoments() = default;
    QueryMoments(int64_t heads, int64_t dims)
        : sums_({heads, dims}), squares_({heads, dims, dims}) {}

    /// q [n, Hq, dh].
    void add(View<const float, 3> q, int threads) {
        count_ += q.extent(0);
#pragma omp parallel for num_threads(threads)
        for (int64_t h = 0; h < q.extent(1); ++h)
            for (int64_t i = 0; i < q.extent(0); ++i)
                for (int64_t d = 0; d < q.extent(2); ++d) {
                    const double of_query = q(i, h, d);
                    double* row = &squares_(h, d, 0);
                    sums_(h, d) += of_query;
                    for (int64_t e = 0; e < q.extent(2); ++e)
                        row[e] += of_query * double{q(i, h, e)};
                }
    }

    /// The statistics of head h after turning each pair of channels (c, c + turns.size()).
    QueryStatistics turned(int64_t h, const std::vector<MeanTurn>& turns) const {
        const int64_t dims = sums_.extent(1);
        const auto count = static_cast<double>(count_);
        std::vector<double> mean(static_cast<size_t>(dims));
        Tensor<double, 2> covariance({dims, dims});
        for (int64_t d = 0; d < dims; ++d) mean[static_cast<size_t>(d)] = sums_(h, d) / count;
        for (int64_t d = 0; d < dims; ++d)
            for (int64_t e = 0; e < dims; ++e)
                covariance(d, e) = squares_(h, d, e) / count -
                                   mean[static_cast<size_t>(d)] * mean[static_cast<size_t>(e)];
        turn(mean.data(), 1, turns);
        for (int64_t d = 0; d < dims; ++d) turn(&covariance(d, 0), 1, turns);
        for (int64_t e = 0; e < dims; ++e) turn(&covariance(0, e), dims, turns);
        QueryStatistics of{Tensor<float, 1>({dims}), Tensor<float, 2>({dims, dims})};
        for (int64_t d = 0; d < dims; ++d)
            of.mean(d) = static_cast<float>(mean[static_cast<size_t>(d)]);
        for (int64_t at = 0; at < covariance.size(); ++at)
            of.covariance.data()[at] = static_cast<float>(covariance.data()[at]);
        return of;
    }

private:
    static void turn(double* values, int64_t step, const std::vector<MeanTurn>& turns) {
        const auto pairs = std::ssize(turns);
        for (int64_t c = 0; c < pairs; ++c) {
            const MeanTurn by = turns[static_cast<size_t>(c)];
            const double low = values[c * step], high = values[(c + pairs) * step];
            values[c * step] = low * by.cosine - high * by.sine;
            values[(c + pairs) * step] = high * by.cosine + low * by.sine;
        }
    }

    int64_t count_ = 0;
    Tensor<double, 2> sums_;
    Tensor<double, 3> squares_;
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
        return "softmax of the expected exp(q . k) over normal queries of the prompt's mean and "
               "covariance before RoPE, turned by the mean rotation of the next 512 positions, "
               "mean over the group's heads, times |v|, summed over the block; the first 4 tokens "
               "count as the best (Expected Attention, arXiv 2510.00636). Prefill phase: observed "
               "anew for every query block";
    }
    std::string_view note() const override {
        return "chosen anew for every query block, of which the source evicts tokens once, after "
               "the prompt";
    }
    std::vector<PolicyOption> options() override {
        return {{"future", "positions whose mean rotation turns the queries", &future_, 1, 65536},
                {"sinks", "first tokens that count as the best, and whose queries are left out",
                 &sinks_, 0, 65536},
                {"covariance", "1: mean and covariance of the queries; 0: the mean alone",
                 &covariance_, 0, 1},
                {"values", "1: times |v|; 0: the probability alone", &values_, 0, 1},
                {"epsilon", "added to a probability before |v|", &epsilon_, 0, 1}};
    }
    Family family() const override { return Family::queries; }
    Needs needs() const override { return {.queries = true, .values = true, .rope = true}; }
    PolicyCost do_cost(const Phase& phase) const override {
        const double dims =
            static_cast<double>(phase.problem.head_dim) * (covariance_ != 0 ? 1 : 0);
        const double heads =
            2 * static_cast<double>(phase.problem.query_heads * phase.problem.head_dim);
        PolicyCost cost;
        for (int64_t s = 0; s < phase.problem.sequences(); ++s) {
            const int64_t length = sequence_length(phase.problem, s);
            const int64_t step =
                phase.prompt > 0 ? std::min(phase.prompt, length) : phase.problem.block_size;
            const int64_t last = phase.prompt > 0 ? step : length - 1;
            for (int64_t end = step; step > 0 && end <= last; end += step) {
                const auto keys = static_cast<double>(end), queries = static_cast<double>(step);
                cost.flops += heads * (keys * (dims + 1) + queries * dims);
                cost.bytes += per_head(phase.problem, keys * (values_ != 0 ? 2 : 1)).bytes;
            }
        }
        return cost;
    }

    void prepare(const SelectorLayer& layer) override {
        sequence_ = end_ = kUnset;
        const View<const float, 3> v = layer.v.host(), k = layer.k.host();
        norms_ = Tensor<float, 2>({v.extent(1), v.extent(0)});
        for (int64_t r = 0; r < norms_.extent(0); ++r)
            for (int64_t j = 0; j < norms_.extent(1); ++j)
                norms_(r, j) = values_ != 0 ? norm_of(v[j][r]) : 1;
        keys_ = Tensor<float, 3>();
        if (!layer.rope.interleaved) return;
        keys_ = Tensor<float, 3>(k.shape());
        std::copy_n(k.data(), k.size(), keys_.data());
        split_pairs(keys_, std::ssize(layer.rope.frequencies));
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
            if (end <= sinks_) continue;
            observe(layer, sequence[row], end);
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
    /// Sets sums_ by the queries before position `end`, which is behind the first tokens;
    /// probabilities are normalised over the keys before it.
    void observe(const SelectorLayer& layer, int64_t sequence, int64_t end) {
        if (sequence == sequence_ && end == end_) return;
        const Problem& p = layer.problem;
        if (sequence != sequence_ || end < end_) {
            moments_ = QueryMoments(p.query_heads, p.head_dim);
            end_ = sinks_;
        }
        sequence_ = sequence;
        for (; end_ < end; end_ = std::min(end, end_ + kQueriesRead)) read_queries(layer, end);
        const int64_t all = sequence_length(p, sequence), start = sequence_start(p, sequence);
        // No query of a block sees a key behind it.
        const int64_t length = layer.prompt > 0 ? all : std::min(end + p.block_size, all);
        Tensor<double, 2> weights({p.kv_heads, length});
        const std::vector<MeanTurn> turns = mean_turns(layer.rope, end, future_);
        for (int64_t h = 0; h < p.query_heads; ++h)
            add_head(layer, moments_.turned(h, turns), h / p.group_size(), start, weights);
        double most = 0;
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t j = 0; j < length; ++j) {
                weights(r, j) = (weights(r, j) + epsilon_) * double{norms_(r, start + j)};
                if (j >= sinks_ && j < end) most = std::max(most, weights(r, j));
            }
        sums_ = Tensor<double, 2>({p.kv_heads, length + 1});
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t j = 0; j < length; ++j)
                sums_(r, j + 1) = sums_(r, j) + (j < sinks_ ? most : weights(r, j));
    }

    /// Adds those from position end_ on, as many as are read at a time and stand before `end`.
    void read_queries(const SelectorLayer& layer, int64_t end) {
        const QueryRange range{end_, std::min(end, end_ + kQueriesRead)};
        const Mirror<3> rows = layer.read_q(sequence_tokens(layer.problem, sequence_, range));
        const View<const float, 3> q = rows.host();
        Tensor<float, 3> before(q.shape());
        std::copy_n(q.data(), q.size(), before.data());
        std::vector<int64_t> positions;
        for (int64_t t = range.begin; t < range.end; ++t) positions.push_back(t);
        undo_rope(before, positions, layer.rope);
        moments_.add(before, layer.backend.host_threads());
    }

    /// Adds one head's probabilities of all keys of a sequence, over the group's heads.
    void add_head(const SelectorLayer& layer, const QueryStatistics& of, int64_t group,
                  int64_t start, Tensor<double, 2>& weights) const {
        const Problem& p = layer.problem;
        const View<const float, 3> k = layer.rope.interleaved ? keys_.view() : layer.k.host();
        std::vector<double> logits(static_cast<size_t>(weights.extent(1)));
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t j = 0; j < weights.extent(1); ++j)
            logits[static_cast<size_t>(j)] =
                of.log_expected(k[start + j][group], p.softmax_scale(), covariance_ != 0);
        // The source's softmax leaves the first tokens out, too.
        const double top = *std::max_element(logits.begin() + sinks_, logits.begin() + end_);
        double all = 0;
        for (int64_t j = sinks_; j < end_; ++j)
            all += std::exp(logits[static_cast<size_t>(j)] - top);
        for (int64_t j = 0; j < weights.extent(1); ++j)
            weights(group, j) += std::exp(logits[static_cast<size_t>(j)] - top) / all /
                                 static_cast<double>(p.group_size());
    }

    int64_t future_ = 512, sinks_ = 4, covariance_ = 1, values_ = 1;
    double epsilon_ = 0;
    int64_t sequence_ = kUnset, end_ = kUnset;
    QueryMoments moments_;    // of the positions [sinks_, end_)
    Tensor<float, 2> norms_;  // [Hkv, Nk] |v|
    Tensor<float, 3> keys_;   // [Nk, Hkv, dh] k with the channels of a pair at c and c + pairs,
                              // where they are elsewhere
    Tensor<double, 2> sums_;  // [Hkv, tokens + 1] of the weights of the keys before
};

}  // namespace

std::unique_ptr<Selector> make_expected_attention_selector() {
    return std::make_unique<ExpectedAttentionSelector>();
}

}  // namespace msa
