// SPDX-License-Identifier: MIT
#include <algorithm>
#include <numeric>

#include "core/select/attention_rows.h"
#include "core/select/block_vectors.h"

namespace msa {
namespace {

constexpr int64_t kRepresentatives = 4;  // tokens of a block
constexpr int64_t kTile = 256;           // queries looked at together
// Of the source's 128 first, 4096 newest and 2048 chosen tokens.
constexpr int64_t kNewestParts = 4096, kAllParts = 6272;

class InfLlmSelector final : public Selector {
public:
    std::string_view name() const override { return "infllm"; }
    std::string_view rule() const override {
        return "q . mean of the block's 4 keys that received most attention while they were in the "
               "local window, summed over the group's heads; the first block and two thirds of the "
               "budget, the newest, forced (InfLLM, arXiv 2402.04617)";
    }
    Needs needs() const override { return {.queries = true, .rule = true}; }

    void prepare(const SelectorLayer& layer) override {
        const Problem& p = layer.problem;
        vectors_.clear();
        for (int64_t s = 0; s < p.sequences(); ++s) {
            const Tensor<float, 2> received = attention_received(layer, s);
            const int64_t blocks = ceil_div(sequence_length(p, s), p.block_size);
            Tensor<float, 3> vectors({p.kv_heads, blocks, p.head_dim});
            for (int64_t r = 0; r < p.kv_heads; ++r)
                for (int64_t b = 0; b < blocks; ++b)
                    represent(layer, s, r, b, received.view()[r], vectors.view()[r][b]);
            vectors_.push_back(std::move(vectors));
        }
    }

    void score(const SelectorLayer&, const SelectorChunk& chunk, View<float, 3> scores) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange> visible = visible_keys(p);
        const std::vector<int64_t> sequence = query_sequences(p);
#pragma omp parallel for schedule(dynamic, 16) if (p.queries() > kSmall)
        for (int64_t i = 0; i < p.queries(); ++i) {
            const auto row = static_cast<size_t>(i);
            const Tensor<float, 3>& vectors = vectors_[static_cast<size_t>(sequence[row])];
            for (int64_t r = 0; r < p.kv_heads; ++r) {
                Tensor<float, 1> q({p.head_dim});
                for (int64_t h = r * p.group_size(); h < (r + 1) * p.group_size(); ++h)
                    add_query(chunk.q[i][h], q);
                for (int64_t b = 0; b < visible_blocks(visible[row].count, p.block_size); ++b) {
                    const float* vector = &vectors(r, b, 0);
                    float sum = 0;
                    for (int64_t d = 0; d < p.head_dim; ++d) sum += q(d) * vector[d];
                    scores(i, r, b) = sum;
                }
            }
        }
    }

    SelectionRule adjust(SelectionRule asked) const override {
        return force(asked, 1, asked.top_k * kNewestParts / kAllParts);
    }

private:
    /// Tokens of the local window before the query's own block: a block that is left behind has
    /// been seen by no query after this one.
    int64_t window(const SelectorLayer& layer) const {
        return std::max<int64_t>(1,
                                 (adjust(layer.rule).forced_local - 1) * layer.problem.block_size);
    }

    /// [Hkv, tokens]: attention that each key of a sequence received from the queries whose local
    /// window it was in.
    Tensor<float, 2> attention_received(const SelectorLayer& layer, int64_t sequence) const {
        const Problem& p = layer.problem;
        const int64_t length = sequence_length(p, sequence);
        Tensor<float, 2> received({p.kv_heads, length});
        for (int64_t begin = 0; begin < length; begin += kTile)
            for_each_attention_row(
                layer, sequence_tokens(p, sequence, {begin, std::min(begin + kTile, length)}),
                window(layer), [&](const AttentionRow& row) {
                    float* to = &received(row.head / p.group_size(), row.keys.begin);
                    for (int64_t j = 0; j < row.keys.end - row.keys.begin; ++j)
                        to[j] += row.weights[j];
                });
        return received;
    }

    /// Mean key of a block's representatives.
    static void represent(const SelectorLayer& layer, int64_t sequence, int64_t group,
                          int64_t block, View<const float, 1> received, View<float, 1> mean) {
        const Problem& p = layer.problem;
        const int64_t begin = block * p.block_size;
        std::vector<int64_t> tokens(
            static_cast<size_t>(std::min(p.block_size, received.size() - begin)));
        std::iota(tokens.begin(), tokens.end(), begin);
        const auto count = std::min(kRepresentatives, std::ssize(tokens));
        std::partial_sort(tokens.begin(), tokens.begin() + count, tokens.end(),
                          [&](int64_t a, int64_t b) {
                              return received(a) != received(b) ? received(a) > received(b) : a < b;
                          });
        const int64_t start = p.batch.cu_seqlens_k()[static_cast<size_t>(sequence)];
        for (int64_t n = 0; n < count; ++n)
            for (int64_t d = 0; d < mean.size(); ++d)
                mean(d) += layer.k(start + tokens[static_cast<size_t>(n)], group, d) /
                           static_cast<float>(count);
    }

    std::vector<Tensor<float, 3>> vectors_;  // [S] of [Hkv, blocks, dh]
};

}  // namespace

std::unique_ptr<Selector> make_infllm_selector() { return std::make_unique<InfLlmSelector>(); }

}  // namespace msa
