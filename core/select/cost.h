// SPDX-License-Identifier: MIT
// Building blocks of policies' costs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/indexer/gate_kl.h"
#include "core/select/policy.h"

namespace msa {

inline constexpr double kCostElementBytes = 2;

/// Products of width dh of each query head with `vectors` vectors, summed over queries. Each group
/// reads the vectors' bytes once.
inline PolicyCost per_head(const Problem& p, double vectors) {
    const auto dims = static_cast<double>(p.head_dim);
    return {2 * static_cast<double>(p.query_heads) * dims * vectors,
            kCostElementBytes * static_cast<double>(p.kv_heads) * dims * vectors};
}

/// The same if the heads of a group are summed first.
inline PolicyCost per_group(const Problem& p, double vectors) {
    const auto width = static_cast<double>(p.kv_heads * p.head_dim);
    return {2 * width * vectors, kCostElementBytes * width * vectors};
}

/// Sum over queries of count(visible keys).
template <typename Count>
double over_queries(const Problem& p, Count count) {
    double sum = 0;
    for (const KeyRange& seen : visible_keys(p)) sum += static_cast<double>(count(seen.count));
    return sum;
}

/// (query, visible key) and (query, visible block) pairs.
inline double keys_seen(const Problem& p) {
    return over_queries(p, [](int64_t keys) { return keys; });
}
inline double blocks_seen(const Problem& p) {
    return over_queries(p, [&](int64_t keys) { return visible_blocks(keys, p.block_size); });
}
/// (query block, key block) pairs; a query block sees what its last query sees.
inline double block_pairs(const Problem& p) {
    double pairs = 0;
    for (size_t s = 0; s + 1 < p.batch.cu_seqlens_k().size(); ++s) {
        const auto blocks = static_cast<double>(
            ceil_div(p.batch.cu_seqlens_k()[s + 1] - p.batch.cu_seqlens_k()[s], p.block_size));
        pairs += blocks * (blocks + 1) / 2;
    }
    return pairs;
}

/// index_q of every group with every visible index_k.
inline PolicyCost index_branch_cost(const Problem& p) {
    const double width = static_cast<double>(p.index_dim) * keys_seen(p);
    return {2 * static_cast<double>(p.kv_heads) * width, kCostElementBytes * width};
}

/// Products of DSA's index heads with every visible key, each times its head's weight.
inline PolicyCost lightning_cost(const Problem& p, const LearnedSizes& of) {
    const double keys = keys_seen(p), width = static_cast<double>(of.dsa_dim);
    return {2 * static_cast<double>(of.dsa_heads) * (width + 1) * keys,
            kCostElementBytes * width * keys};
}

/// Products of QSA's index heads with every piece that its query sees.
inline PolicyCost qsa_cost(const Problem& p, const LearnedSizes& of) {
    const double pieces = over_queries(p, [&](int64_t keys) { return keys / of.qsa_compress; });
    const double width = static_cast<double>(of.qsa_dim) * pieces;
    return {2 * static_cast<double>(of.qsa_heads) * width, kCostElementBytes * width};
}

/// Values per query that they read; without learned operands those of the Index Branch.
inline int64_t qsa_query_width(const Problem& p, const LearnedSizes& of) {
    return of.qsa_heads > 0 ? of.qsa_heads * of.qsa_dim : p.kv_heads * p.index_dim;
}

/// Products of every group's gate query with the gate keys of the blocks before the query's own.
inline PolicyCost gate_cost(const Problem& p, const LearnedSizes& of) {
    const double blocks = over_queries(
        p, [&](int64_t keys) { return std::max<int64_t>(0, own_block(keys, p.block_size)); });
    const double width = static_cast<double>(p.kv_heads * of.gate_dim) * blocks;
    return {2 * width, kCostElementBytes * width};
}

/// Dense attention's products q . k, the cost of an oracle.
inline PolicyCost oracle_cost(const Problem& p) { return per_head(p, keys_seen(p)); }

/// Attention of the last `probe` queries of each sequence's prompt, the keys read once.
inline PolicyCost probe_cost(const Problem& p, int64_t probe, int64_t prompt) {
    PolicyCost cost;
    for (size_t s = 0; s + 1 < p.batch.cu_seqlens_k().size(); ++s) {
        const int64_t length = p.batch.cu_seqlens_k()[s + 1] - p.batch.cu_seqlens_k()[s];
        const int64_t keys = prompt > 0 ? std::min(prompt, length) : length;
        const PolicyCost once = per_head(p, static_cast<double>(keys));
        cost.flops += static_cast<double>(std::min(probe, keys)) * once.flops;
        cost.bytes += once.bytes;
    }
    return cost;
}

}  // namespace msa
