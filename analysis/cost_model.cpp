// SPDX-License-Identifier: MIT
#include "analysis/cost_model.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "analysis/bytes.h"
#include "core/selection.h"

namespace msa::analysis {
namespace {

double bytes_of(Element element) { return real(element_bytes(element)); }

/// q in, out and lse out.
double query_bytes(const Problem& p, Element element) {
    return real(p.queries() * p.query_heads) *
           (2 * bytes_of(element) * real(p.head_dim) + kLseBytes);
}

/// d_out in, d_q, d_k and d_v out.
double gradient_bytes(const Problem& p, Element element) {
    return 2 * bytes_of(element) *
           real((p.queries() * p.query_heads + p.keys() * p.kv_heads) * p.head_dim);
}

/// (token, group) pairs that any query selected.
int64_t selected_tokens(const Problem& p, View<const int32_t, 3> ids) {
    const std::vector<KeyRange> visible = visible_keys(p);
    const std::vector<int64_t> starts = block_starts(p), sequences = query_sequences(p);
    std::vector<int64_t> tokens(static_cast<size_t>(starts.back() * p.kv_heads), 0);
    for (int64_t i = 0; i < p.queries(); ++i) {
        const auto at = static_cast<size_t>(i);
        const int64_t first = starts[static_cast<size_t>(sequences[at])];
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t b : selected(ids, i, r)) {
                int64_t& most = tokens[static_cast<size_t>((first + b) * p.kv_heads + r)];
                most = std::max(most, std::min(p.block_size, visible[at].count - b * p.block_size));
            }
    }
    return std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
}

}  // namespace

double causal_pairs(const Problem& p) {
    double pairs = 0;
    for (const KeyRange& seen : visible_keys(p)) pairs += static_cast<double>(seen.count);
    return pairs;
}

double attended_pairs(const Problem& p) {
    double pairs = 0;
    for (const KeyRange& seen : visible_keys(p))
        pairs += real(seen.count - p.window_start(seen.count));
    return pairs;
}

double selected_pairs(const Problem& p, View<const int32_t, 3> ids) {
    const std::vector<KeyRange> visible = visible_keys(p);
    double pairs = 0;
    for (int64_t i = 0; i < p.queries(); ++i)
        for (int64_t r = 0; r < p.kv_heads; ++r)
            for (int64_t b : selected(ids, i, r)) {
                const int64_t count = visible[static_cast<size_t>(i)].count;
                const int64_t begin = std::max(b * p.block_size, p.window_start(count));
                pairs +=
                    real(std::max<int64_t>(0, std::min((b + 1) * p.block_size, count) - begin));
            }
    return pairs;
}

double kept_pairs(const Problem& p, int64_t top_k) {
    double pairs = 0;
    for (const KeyRange& seen : visible_keys(p)) {
        if (seen.count == 0) continue;
        const int64_t own = (seen.count - 1) % p.block_size + 1;
        pairs += real(std::min(seen.count, (top_k - 1) * p.block_size + own));
    }
    return pairs;
}

double attention_flops(const Problem& p, double pairs) {
    return 4 * real(p.query_heads * p.head_dim) * pairs;
}

double dense_attention_flops(const Problem& p) { return attention_flops(p, attended_pairs(p)); }

double block_mass_flops(const Problem& p) {
    return 2 * static_cast<double>(p.query_heads * p.head_dim) * attended_pairs(p);
}

double index_scores_flops(const Problem& p) {
    return 2 * static_cast<double>(p.kv_heads * p.index_dim) * causal_pairs(p);
}

double sparse_attention_flops(const Problem& p, View<const int32_t, 3> ids) {
    return 4 * static_cast<double>(p.group_size() * p.head_dim) * selected_pairs(p, ids);
}

double dense_attention_grad_flops(const Problem& p) { return 2.5 * dense_attention_flops(p); }

double sparse_attention_grad_flops(const Problem& p, View<const int32_t, 3> ids) {
    return 2.5 * sparse_attention_flops(p, ids);
}

double index_gradient_flops(const Problem& p, double pairs) {
    return 4 * real(p.index_dim) * pairs;
}

double index_kl_flops(const Problem& p, double pairs) {
    return 2 * real(p.group_size() * p.head_dim + p.index_dim) * pairs +
           index_gradient_flops(p, pairs);
}

double select_blocks_bytes(const Problem& p, int64_t top_k) {
    return real(p.queries() * p.kv_heads) *
           (kScoreBytes * real(p.blocks()) + kIdBytes * real(top_k));
}

double index_scores_bytes(const Problem& p, Element element) {
    return bytes_of(element) * real((p.queries() * p.kv_heads + p.keys()) * p.index_dim) +
           kScoreBytes * real(p.queries() * p.kv_heads) * real(p.blocks());
}

double index_select_bytes(const Problem& p, Element element, int64_t top_k) {
    return bytes_of(element) * real((p.queries() * p.kv_heads + p.keys()) * p.index_dim) +
           kIdBytes * real(p.queries() * p.kv_heads * top_k);
}

double index_kl_bytes(const Problem& p, Element element) {
    const double index = real((p.queries() * p.kv_heads + p.keys()) * p.index_dim);
    const double main = real((p.queries() * p.query_heads + p.keys() * p.kv_heads) * p.head_dim);
    return bytes_of(element) * (index + main) + kGradientBytes * index +
           kLossBytes * real(p.queries() * p.kv_heads);
}

double sparse_attention_bytes(const Problem& p, View<const int32_t, 3> ids, Element element) {
    return query_bytes(p, element) +
           2 * bytes_of(element) * real(selected_tokens(p, ids) * p.head_dim) +
           kIdBytes * real(ids.size());
}

double dense_attention_bytes(const Problem& p, Element element) {
    return query_bytes(p, element) +
           2 * bytes_of(element) * real(p.keys() * p.kv_heads * p.head_dim);
}

double sparse_attention_grad_bytes(const Problem& p, View<const int32_t, 3> ids, Element element) {
    return sparse_attention_bytes(p, ids, element) + gradient_bytes(p, element);
}

double dense_attention_grad_bytes(const Problem& p, Element element) {
    return dense_attention_bytes(p, element) + gradient_bytes(p, element);
}

double block_mass_bytes(const Problem& p, Element element) {
    return bytes_of(element) *
               real((p.queries() * p.query_heads + p.keys() * p.kv_heads) * p.head_dim) +
           kMassBytes * real(p.queries() * p.kv_heads * p.blocks());
}

}  // namespace msa::analysis
