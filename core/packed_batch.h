// SPDX-License-Identifier: MIT
// Where the sequences of a packed batch lie, and which keys each query sees.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace msa {

/// The tokens [first, first + count) of the packed key axis.
struct KeyRange {
    int64_t first = 0;
    int64_t count = 0;
    bool operator==(const KeyRange&) const = default;
};

/// The rows [begin, end) of the packed query axis.
struct QueryRange {
    int64_t begin = 0;
    int64_t end = 0;
    bool operator==(const QueryRange&) const = default;
};

/// A handle to an immutable layout; copies share it. The layout is checked once, when it is
/// created. Data derived from it, here and by backends, is kept as long as a handle lives. Code
/// that calls operations in a loop (training steps, decoding) should create the layout once and
/// keep the handle.
///
/// Sequence s owns the queries [cu_seqlens_q[s], cu_seqlens_q[s+1]) and the keys
/// [cu_seqlens_k[s], cu_seqlens_k[s+1]) of the packed token axes. An empty sequence is valid.
///
/// Query positions say where in its sequence each query sits; a query sees the keys 0..position of
/// its sequence, and a negative position sees none. Without positions the usual rule holds: the
/// last query sits on the last key, so query i of a sequence sits at Nk - Nq + i. That covers
/// prefill, chunked prefill on a prefix, and decode. Explicit positions allow a sample of the
/// queries.
class PackedBatch {
public:
    /// No sequences.
    PackedBatch();
    /// cu_seqlens [S+1], from 0, not decreasing; query_positions [Nq], or empty for the usual rule,
    /// not decreasing within a sequence, each below the sequence's keys. Throws InputError naming
    /// the entry and the rule it breaks.
    PackedBatch(std::vector<int64_t> cu_seqlens_q, std::vector<int64_t> cu_seqlens_k,
                std::vector<int64_t> query_positions = {});

    const std::vector<int64_t>& cu_seqlens_q() const;
    const std::vector<int64_t>& cu_seqlens_k() const;
    const std::vector<int64_t>& query_positions() const;  // empty: the usual rule

    int64_t sequences() const;     // S
    int64_t queries() const;       // Nq
    int64_t keys() const;          // Nk
    int64_t longest_keys() const;  // keys of the longest sequence
    int64_t longest_queries() const;

    /// [Nq] the keys that each query sees; the query's position is count - 1. Computed on first
    /// use.
    const std::vector<KeyRange>& visible_keys() const;

    /// The same keys with only the given query rows (not decreasing), at their positions.
    PackedBatch with_query_rows(std::span<const int64_t> rows) const;
    PackedBatch with_queries(QueryRange range) const;

    /// Whether both describe the same layout. Comparing handles of one layout takes constant time.
    bool operator==(const PackedBatch& other) const;
    /// The layout itself, for caches that must not outlive it.
    std::shared_ptr<const void> identity() const;

private:
    struct Layout;
    std::shared_ptr<const Layout> layout_;
};

}  // namespace msa
