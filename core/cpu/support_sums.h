// SPDX-License-Identifier: MIT
// The log-sum-exp of rows over the blocks that their queries attend to: index_select returns it,
// and index_kl computes it if the caller does not pass it. Also how a support is cut: the queries
// into pieces, and the blocks of the full support into rounds.
#pragma once

#include <algorithm>
#include <vector>

#include "core/cpu/block_queries.h"
#include "core/selection.h"

namespace msa::cpu {

inline constexpr int64_t kRoundBlocks = 32;
inline constexpr int64_t kPieceBytes = int64_t{1} << 24;  // slots of a piece stay in cache

/// ids [Nq, Hkv, slots]: the blocks from `first` on that each query sees.
Tensor<int32_t, 3> visible_ids(const Problem&, int64_t first, int64_t slots);

/// Calls visit(ids [Nq, Hkv, slots]) once for a selection. For the full support (ids absent) calls
/// it for each kRoundBlocks blocks.
template <typename Visit>
void for_each_round(const Problem& p, View<const int32_t, 3> ids, Visit visit) {
    if (ids) return visit(ids);
    int64_t most = 0;
    for (const KeyRange& seen : visible_keys(p)) most = std::max(most, seen.count);
    for (int64_t first = 0; first < visible_blocks(most, p.block_size); first += kRoundBlocks)
        visit(View<const int32_t, 3>(visible_ids(p, first, kRoundBlocks).view()));
}

/// How many queries, with slots of `floats` floats, fit into kPieceBytes; ids as in for_each_round.
inline int64_t piece_queries(const Problem& p, View<const int32_t, 3> ids, int64_t floats) {
    const int64_t slots = ids ? ids.extent(2) : kRoundBlocks;
    return std::clamp<int64_t>(kPieceBytes / (slots * floats * int64_t{sizeof(float)}), 1,
                               std::max<int64_t>(1, p.queries()));
}

class SupportSums {
public:
    SupportSums(const Problem&, const Branch&, int threads);
    /// Adds the keys of blocks ids [Nq, Hkv, k], none of which may have been added before.
    void add(View<const int32_t, 3> ids);
    /// Natural log of a row's sum; -inf if no key was added.
    float lse(int64_t query, int64_t head) const { return log_sum(states_(query, head)); }

private:
    struct Worker;
    const Problem& p_;
    const Branch& branch_;
    int threads_;
    Tensor<OnlineSum, 2> states_;  // [Nq, heads of all groups]
    Tensor<float, 1> slots_;       // grows to what a round needs
};

/// lse [Nq, Hkv] of the index scores on the blocks ids [Nq, Hkv, k].
void index_lse(const Problem&, View<const float, 3> index_q, const KeyTokens<float>& index_k,
               View<const int32_t, 3> ids, View<float, 2> lse, int threads);

}  // namespace msa::cpu
