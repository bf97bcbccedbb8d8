// SPDX-License-Identifier: MIT
// The KV-outer schedule of sparse attention (sec:kernel:sparse_attn). It lists for every key block
// the queries that selected it, cut into chunks of bounded work, and for every (query, block) pair
// the slot of its partial output. Deterministic, no atomics.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

/// One query of a block's list.
struct SelectedQuery {
    int64_t query;  // row of the packed query axis
    int32_t slot;   // position of the block in the query's row of ids, from 0 to k - 1
    bool operator==(const SelectedQuery&) const = default;
};

/// Consecutive queries of one (group, block).
struct BlockChunk {
    int64_t group;
    int64_t block;  // in its sequence
    int64_t sequence;
    int64_t begin, end;  // in KvOuterSchedule::queries
    bool operator==(const BlockChunk&) const = default;
};

struct KvOuterSchedule {
    /// The reverse index: queries of every (group, block), queries ascending; groups outermost,
    /// blocks numbered through all sequences (block_starts).
    std::vector<int64_t> starts;         // [Hkv * blocks + 1]
    std::vector<SelectedQuery> queries;  // [selected pairs]
    std::vector<BlockChunk> chunks;      // in the order of the reverse index; none is empty

    std::span<const SelectedQuery> of(const BlockChunk& chunk) const {
        return {queries.data() + chunk.begin, queries.data() + chunk.end};
    }
};

/// The schedule of ids [Nq, Hkv, k] with at most `chunk_queries` queries per chunk; the paper's
/// bound is 2 * k * Bk.
KvOuterSchedule schedule_kv_outer(const Problem&, View<const int32_t, 3> ids,
                                  int64_t chunk_queries);

}  // namespace msa
