// SPDX-License-Identifier: MIT
#include "analysis/selector_cost.h"

#include <algorithm>

#include "analysis/cost_model.h"
#include "core/error.h"

namespace msa::analysis {
namespace {

constexpr double kElementBytes = 2;
constexpr int64_t kSnapKvProbe = 32, kMinferenceProbe = 64;  // queries

/// Products of width dh: of each query head with each of `vectors` vectors, summed over queries and
/// held once per group.
Cost per_head(const Problem& p, double vectors) {
    const auto dims = static_cast<double>(p.head_dim);
    return {2 * static_cast<double>(p.query_heads) * dims * vectors,
            kElementBytes * static_cast<double>(p.kv_heads) * dims * vectors};
}

/// The same where the heads of a group are added up first.
Cost per_group(const Problem& p, double vectors) {
    const auto width = static_cast<double>(p.kv_heads * p.head_dim);
    return {2 * width * vectors, kElementBytes * width * vectors};
}

/// index_q with every visible index_k.
Cost index_branch(const Problem& p) {
    return {index_scores_flops(p),
            kElementBytes * static_cast<double>(p.index_dim) * causal_pairs(p)};
}

double blocks_seen(const Problem& p) {
    double blocks = 0;
    for (const KeyRange& seen : visible_keys(p))
        blocks += static_cast<double>(visible_blocks(seen.count, p.block_size));
    return blocks;
}

/// Mean-pooled pieces of 32 tokens every 16 (NSA, InfLLM-V2).
double pieces_seen(const Problem& p) {
    double pieces = 0;
    for (const KeyRange& seen : visible_keys(p))
        pieces += static_cast<double>(seen.count < 32 ? 0 : (seen.count - 32) / 16 + 1);
    return pieces;
}

/// Attention of the last `probe` queries of each sequence's prompt, the keys read once.
Cost probe(const Problem& p, int64_t probe, int64_t prompt) {
    Cost cost;
    for (size_t s = 0; s + 1 < p.batch.cu_seqlens_k().size(); ++s) {
        const int64_t length = p.batch.cu_seqlens_k()[s + 1] - p.batch.cu_seqlens_k()[s];
        const int64_t keys = prompt > 0 ? std::min(prompt, length) : length;
        const Cost once = per_head(p, static_cast<double>(keys));
        cost.flops += static_cast<double>(probe) * once.flops;
        cost.bytes += once.bytes;
    }
    return cost;
}

}  // namespace

Cost selector_cost(std::string_view selector, const Problem& p, int64_t prompt) {
    const auto is = [&](auto... names) { return ((selector == names) || ...); };
    if (is("random", "window", "streaming-llm", "previous-layer", "h2o")) return {};
    if (is("index", "dsa", "dsa-tokens")) return index_branch(p);
    if (is("oracle", "oracle-logit", "top-p", "h2o-oracle")) return per_head(p, causal_pairs(p));
    if (is("mean-key", "infllm", "minference-bs")) return per_group(p, blocks_seen(p));
    if (is("quest")) return per_group(p, 2 * blocks_seen(p));
    if (is("nsa", "infllm-v2")) return per_head(p, pieces_seen(p));
    if (is("snapkv") && prompt > 0) return probe(p, kSnapKvProbe, prompt);
    if (is("snapkv")) {  // every query is of some probe
        const Cost all = per_head(p, causal_pairs(p));
        return {all.flops, all.bytes / kSnapKvProbe};
    }
    if (is("minference-vs", "minference")) return probe(p, kMinferenceProbe, prompt);
    if (is("flexprefill")) return probe(p, p.block_size, prompt);
    throw InputError(text("no cost is known for selector '", selector, "'"));
}

}  // namespace msa::analysis
