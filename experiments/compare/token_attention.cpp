// SPDX-License-Identifier: MIT
#include "experiments/compare/token_attention.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "experiments/driver/attend.h"

namespace msa::experiments::compare {
namespace {

constexpr int64_t kTogether = 8;  // products of a query with keys that run side by side

/// One head's keys or values in a sequence.
struct HeadRows {
    const float* data;
    int64_t stride;  // floats between tokens
    const float* operator[](int64_t token) const { return data + token * stride; }
};

/// products[n] = q . keys[tokens[n]]: each is summed in the order of its channels.
void multiply_keys(View<const float, 1> q, HeadRows keys, const int64_t* tokens, int64_t count,
                   std::array<float, kTogether>& products) {
    std::array<const float*, kTogether> rows{};
    for (int64_t n = 0; n < kTogether; ++n)
        rows[static_cast<size_t>(n)] = keys[tokens[std::min(n, count - 1)]];
    products.fill(0);
    for (int64_t d = 0; d < q.size(); ++d)
        for (size_t n = 0; n < kTogether; ++n) products[n] += q(d) * rows[n][d];
}

/// probability[j] of dense attention, for the tokens j alone.
void find_probabilities(const Problem& p, View<const float, 1> q, HeadRows keys,
                        const std::vector<int64_t>& tokens, double lse,
                        std::vector<double>& probability) {
    std::array<float, kTogether> products{};
    for (int64_t first = 0; first < std::ssize(tokens); first += kTogether) {
        const int64_t count = std::min(kTogether, std::ssize(tokens) - first);
        const int64_t* some = tokens.data() + first;
        multiply_keys(q, keys, some, count, products);
        for (int64_t n = 0; n < count; ++n)
            probability[static_cast<size_t>(some[n])] =
                std::exp(p.logit(double{products[static_cast<size_t>(n)]}) - lse);
    }
}

/// Attention over those of `tokens` that the query attends to, from `first` on, and over a sink
/// with the share `sink` of dense attention, into out [dh], which is 0; returns the tokens' share.
double add_values(const std::vector<double>& probability, HeadRows values,
                  const std::vector<int64_t>& tokens, int64_t first, double sink,
                  View<float, 1> out) {
    const int64_t dims = out.size();
    float* sums = out.data();
    double mass = 0;
    for (int64_t j : tokens) {
        if (j < first) continue;
        const double share = probability[static_cast<size_t>(j)];
        mass += share;
        const auto weight = static_cast<float>(share);
        const float* value = values[j];
        for (int64_t d = 0; d < dims; ++d) sums[d] += weight * value[d];
    }
    for (int64_t d = 0; mass > 0 && d < dims; ++d) sums[d] /= static_cast<float>(mass + sink);
    return mass;
}

/// The tokens from `first` on that any of the choices keeps for a query, ascending. `marks`: 0 for
/// every position, as it is left.
std::vector<int64_t> kept_by_any(const std::vector<KeptTokens>& choices, size_t row, int64_t first,
                                 int64_t seen, std::vector<char>& marks) {
    for (const KeptTokens& kept : choices)
        for (int64_t j : kept[row]) marks[static_cast<size_t>(j)] = 1;
    std::vector<int64_t> tokens;
    for (int64_t j = first; j < seen; ++j)
        if (marks[static_cast<size_t>(j)] != 0) tokens.push_back(j);
    std::fill_n(marks.begin(), seen, char{0});
    return tokens;
}

/// [Nq, Hkv, k] of blocks of one token: the same for all groups, without what a window hides.
Tensor<int32_t, 3> token_ids(const Problem& p, const KeptTokens& kept) {
    size_t most = 1;
    for (const std::vector<int64_t>& tokens : kept) most = std::max(most, tokens.size());
    Tensor<int32_t, 3> ids({p.queries(), p.kv_heads, static_cast<int64_t>(most)}, Fill::nothing);
    std::fill_n(ids.data(), ids.size(), kNoBlock);
    const std::vector<KeyRange>& visible = visible_keys(p);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const auto row = static_cast<size_t>(i);
        const int64_t first = p.window_start(visible[row].count);
        for (int64_t r = 0; r < p.kv_heads; ++r) {
            int32_t* id = &ids(i, r, 0);
            for (int64_t j : kept[row])
                if (j >= first) *id++ = static_cast<int32_t>(j);
        }
    }
    return ids;
}

}  // namespace

TokenAttention attend_tokens_there(Backend& backend, const Problem& p, const AttentionInput& in,
                                   View<const float, 2> lse, View<const float, 1> sinks,
                                   const KeptTokens& kept) {
    Problem single = p;
    single.block_size = 1;
    const Tensor<int32_t, 3> ids = token_ids(p, kept);
    Attention some = attend_selected(backend, single, in, ids);
    TokenAttention result{std::move(some.out), Tensor<double, 2>({p.queries(), p.kv_heads})};
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t h = 0; h < p.query_heads; ++h) {
            const double dense{lse(i, h)};
            const double sink = sinks ? std::exp(double{sinks(h)} - dense) : 0;
            const double all = std::exp(double{some.lse(i, h)} - dense);
            if (all > sink)
                result.mass(i, h / p.group_size()) +=
                    (all - sink) / static_cast<double>(p.group_size());
        }
    return result;
}

std::vector<TokenAttention> attend_tokens(const Problem& p, const DenseAttention& dense,
                                          const std::vector<KeptTokens>& choices, int threads) {
    std::vector<TokenAttention> all;
    for (size_t n = 0; n < choices.size(); ++n)
        all.push_back({Tensor<float, 3>({p.queries(), p.query_heads, p.head_dim}),
                       Tensor<double, 2>({p.queries(), p.kv_heads})});
    const std::vector<KeyRange>& visible = visible_keys(p);
    const auto longest = static_cast<size_t>(p.batch.longest_keys());
    const int64_t stride = p.kv_heads * p.head_dim;
#pragma omp parallel num_threads(threads)
    {
        std::vector<double> probability(longest);
        std::vector<char> marks(longest);
#pragma omp for schedule(dynamic, 16)
        for (int64_t i = 0; i < p.queries(); ++i) {
            const auto row = static_cast<size_t>(i);
            const KeyRange seen = visible[row];
            const int64_t first = p.window_start(seen.count);
            const std::vector<int64_t> tokens = kept_by_any(choices, row, first, seen.count, marks);
            for (int64_t h = 0; h < p.query_heads; ++h) {
                const int64_t r = h / p.group_size(), at = seen.first * stride + r * p.head_dim;
                const double lse{dense.lse(i, h)};
                const double sink = dense.sinks ? std::exp(double{dense.sinks(h)} - lse) : 0;
                find_probabilities(p, dense.q[i][h], {dense.k.data() + at, stride}, tokens, lse,
                                   probability);
                for (size_t n = 0; n < choices.size(); ++n)
                    all[n].mass(i, r) +=
                        add_values(probability, {dense.v.data() + at, stride}, choices[n][row],
                                   first, sink, all[n].out.view()[i][h]) /
                        static_cast<double>(p.group_size());
            }
        }
    }
    return all;
}

}  // namespace msa::experiments::compare
