// SPDX-License-Identifier: MIT
#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>

#include "experiments/compare/tokens.h"
#include "experiments/driver/attend.h"

namespace msa::experiments::compare {
namespace {

constexpr int64_t kTogether = 64;    // tokens whose probabilities are found at a time
constexpr size_t kMostChoices = 64;  // of one pass: the bits of a mask

using Choices = std::span<const KeptTokens>;

/// One head's keys or values in a sequence.
struct HeadRows {
    const float* data;
    int64_t stride;  // floats between tokens
    const float* operator[](int64_t token) const { return data + token * stride; }
};

/// a . b in eight sums side by side.
float product(const float* a, const float* b, int64_t width) {
    constexpr int64_t kSums = 8;
    std::array<float, kSums> sums{};
    const int64_t whole = width / kSums * kSums;
    for (int64_t d = 0; d < whole; d += kSums)
        for (int64_t n = 0; n < kSums; ++n) sums[static_cast<size_t>(n)] += a[d + n] * b[d + n];
    for (int64_t d = whole; d < width; ++d) sums[static_cast<size_t>(d - whole)] += a[d] * b[d];
    return std::accumulate(sums.begin(), sums.end(), 0.0F);
}

/// What some choices keep for one query, in classes of tokens that the same choices keep.
class Classes {
public:
    explicit Classes(int64_t longest) : marks_(static_cast<size_t>(longest), 0) {}

    /// For the query `row`, which attends to the positions [first, seen).
    void find(Choices choices, size_t row, int64_t first, int64_t seen) {
        tokens.clear();
        of_token.clear();
        choosers.clear();
        for (size_t n = 0; n < choices.size(); ++n)
            for (int64_t j : choices[n][row]) marks_[static_cast<size_t>(j)] |= uint64_t{1} << n;
        for (int64_t j = first; j < seen; ++j)
            if (const uint64_t mask = marks_[static_cast<size_t>(j)]; mask != 0) {
                tokens.push_back(j);
                of_token.push_back(class_of(mask));
            }
        std::fill_n(marks_.begin(), seen, uint64_t{0});
    }
    size_t count() const { return choosers.size(); }
    bool has(size_t of_class, size_t choice) const {
        return (choosers[of_class] >> choice & 1U) != 0;
    }

    std::vector<int64_t> tokens;     // that any of them keeps, ascending
    std::vector<size_t> of_token;    // the class of each
    std::vector<uint64_t> choosers;  // of each class, a bit for each choice

private:
    size_t class_of(uint64_t mask) {
        if (!of_token.empty() && choosers[of_token.back()] == mask) return of_token.back();
        const auto known = std::find(choosers.begin(), choosers.end(), mask);
        if (known == choosers.end()) {
            choosers.push_back(mask);
            return choosers.size() - 1;
        }
        return static_cast<size_t>(known - choosers.begin());
    }

    std::vector<uint64_t> marks_;  // by position; all 0 between two queries
};

/// Sums over the tokens of each class, of one query and head: probabilities of dense attention, and
/// values weighted by them.
struct Sums {
    void clear(size_t classes, int64_t dims) {
        mass.assign(classes, 0);
        values.assign(classes * static_cast<size_t>(dims), 0);
    }
    std::vector<double> mass;   // [classes]
    std::vector<float> values;  // [classes, dh]
};

/// Adds the tokens [begin, end) of the classes to the sums of one head.
void add_tokens(const Problem& p, const Classes& of, size_t begin, size_t end,
                View<const float, 1> q, HeadRows keys, HeadRows values, double lse, Sums& sums) {
    const int64_t dims = q.size();
    std::array<double, kTogether> probability{};
    for (size_t n = begin; n < end; ++n)
        probability[n - begin] =
            std::exp(p.logit(double{product(q.data(), keys[of.tokens[n]], dims)}) - lse);
    for (size_t n = begin; n < end; ++n) {
        const double share = probability[n - begin];
        const auto weight = static_cast<float>(share);
        const float* const value = values[of.tokens[n]];
        float* const sum = sums.values.data() + of.of_token[n] * static_cast<size_t>(dims);
        sums.mass[of.of_token[n]] += share;
        for (int64_t d = 0; d < dims; ++d) sum[d] += weight * value[d];
    }
}

/// Attention over the tokens of a choice and a sink with the share `sink` of dense attention, into
/// out [dh], which is 0; returns the tokens' share.
double combine(const Classes& of, const Sums& sums, size_t choice, double sink,
               View<float, 1> out) {
    double mass = 0;
    for (size_t c = 0; c < of.count(); ++c) {
        if (!of.has(c, choice)) continue;
        mass += sums.mass[c];
        const float* const sum = sums.values.data() + c * static_cast<size_t>(out.size());
        for (int64_t d = 0; d < out.size(); ++d) out(d) += sum[d];
    }
    for (int64_t d = 0; mass > 0 && d < out.size(); ++d) out(d) /= static_cast<float>(mass + sink);
    return mass;
}

/// attend_tokens of a query and at most kMostChoices choices.
class RowAttention {
public:
    RowAttention(const Problem& p, const DenseAttention& dense)
        : p_(p),
          dense_(dense),
          classes_(p.batch.longest_keys()),
          sums_(static_cast<size_t>(p.group_size())) {}

    void add(Choices choices, int64_t i, KeyRange seen, std::span<TokenAttention> to) {
        classes_.find(choices, static_cast<size_t>(i), p_.window_start(seen.count), seen.count);
        for (int64_t r = 0; r < p_.kv_heads; ++r) {
            add_group(i, r, seen);
            for (int64_t g = 0; g < p_.group_size(); ++g) {
                const int64_t h = r * p_.group_size() + g;
                const double sink =
                    dense_.sinks ? std::exp(double{dense_.sinks(h)} - double{dense_.lse(i, h)}) : 0;
                for (size_t n = 0; n < choices.size(); ++n)
                    to[n].mass(i, r) += combine(classes_, sums_[static_cast<size_t>(g)], n, sink,
                                                to[n].out.view()[i][h]) /
                                        static_cast<double>(p_.group_size());
            }
        }
    }

private:
    /// All heads of a group look at the same keys: some tokens at a time, so that they stay near.
    void add_group(int64_t i, int64_t r, KeyRange seen) {
        const int64_t stride = p_.kv_heads * p_.head_dim;
        const int64_t at = seen.first * stride + r * p_.head_dim;
        for (Sums& sums : sums_) sums.clear(classes_.count(), p_.head_dim);
        const size_t all = classes_.tokens.size();
        for (size_t begin = 0; begin < all; begin += kTogether)
            for (int64_t g = 0; g < p_.group_size(); ++g) {
                const int64_t h = r * p_.group_size() + g;
                add_tokens(p_, classes_, begin, std::min(begin + kTogether, all), dense_.q[i][h],
                           {dense_.k.data() + at, stride}, {dense_.v.data() + at, stride},
                           double{dense_.lse(i, h)}, sums_[static_cast<size_t>(g)]);
            }
    }

    const Problem& p_;
    const DenseAttention& dense_;
    Classes classes_;
    std::vector<Sums> sums_;  // [G]
};

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
#pragma omp parallel num_threads(threads)
    {
        RowAttention attention(p, dense);
#pragma omp for schedule(dynamic, 16)
        for (int64_t i = 0; i < p.queries(); ++i)
            for (size_t first = 0; first < choices.size(); first += kMostChoices) {
                const size_t some = std::min(kMostChoices, choices.size() - first);
                attention.add(Choices(choices).subspan(first, some), i,
                              visible[static_cast<size_t>(i)], std::span(all).subspan(first, some));
            }
    }
    return all;
}

}  // namespace msa::experiments::compare
