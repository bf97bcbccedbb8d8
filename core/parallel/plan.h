// SPDX-License-Identifier: MIT
// How one layer over one long sequence is divided among ranks: queries for a prefill, keys for a
// decode step. Shape letters: core/problem.h; P ranks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/problem.h"

namespace msa::parallel {

/// Neighbouring queries that one rank answers.
struct Chunk {
    int rank = 0;
    QueryRange queries;  // rows of the whole problem; may be none
    KeyRange own_keys;   // that come with them: [Nk - Nq + begin, Nk - Nq + end)
    Problem problem;     // these queries behind all keys that they see, and no others
};

/// Queries in 2 P chunks of one length, chunks r and 2 P - 1 - r with rank r: of a causal sequence
/// every rank has as many (query, visible key) pairs. Keys are the ranks' like the queries that
/// they come with; keys ahead of all queries are with every rank.
///
/// Chunks begin at multiples of unit() queries, but for the end of the last one, so their lengths
/// differ by a unit at most. A unit is whole blocks of keys, as long as all keys are new, and whole
/// tiles of any kernel.
class ZigZag {
public:
    /// Throws InputError unless the batch is one sequence with the usual rule of positions and has
    /// no more queries than keys, and 1 <= ranks.
    ZigZag(const Problem&, int ranks);

    const Problem& problem() const { return problem_; }
    int ranks() const { return ranks_; }
    const std::vector<Chunk>& chunks() const { return chunks_; }  // [2 P], by queries
    /// The two of a rank, by queries. A rank's operands and results hold their rows in this order.
    std::array<const Chunk*, 2> of(int rank) const;
    int64_t queries_of(int rank) const;
    /// (query, visible key) pairs of a rank.
    double pairs_of(int rank) const;

    static int64_t unit(const Problem&);

private:
    Problem problem_;
    int ranks_;
    std::vector<Chunk> chunks_;
};

/// The keys of one rank while it decodes.
struct KeyPart {
    int64_t first_block = 0, blocks = 0;
    KeyRange keys;    // of the whole problem; may be none
    Problem problem;  // all queries over these keys alone, their blocks numbered from 0
};

/// Keys in P parts of whole blocks, the sequence's last block with the last rank. Parts differ by a
/// block at most.
class SplitKeys {
public:
    /// Throws InputError as ZigZag does, and where there is a window: a part does not tell how far
    /// a query's window reaches into it.
    SplitKeys(const Problem&, int ranks);

    const Problem& problem() const { return problem_; }
    int ranks() const { return static_cast<int>(parts_.size()); }
    const KeyPart& of(int rank) const { return parts_[static_cast<size_t>(rank)]; }

private:
    Problem problem_;
    std::vector<KeyPart> parts_;
};

}  // namespace msa::parallel
