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
    KeyRange own_keys;   // at the queries' positions: [Nk - Nq + begin, Nk - Nq + end)
    Problem problem;     // these queries behind all keys that they see, and no others
};

/// Divides queries into 2 P chunks of nearly equal length; rank r gets chunks r and 2 P - 1 - r. In
/// a causal sequence every rank then has nearly as many (query, visible key) pairs. A rank owns the
/// keys at its queries' positions; keys before all queries are on every rank.
///
/// Chunks begin at multiples of unit() queries, so their lengths differ by at most a unit. A unit
/// is a multiple of the block size and of any kernel's tile of queries.
class ZigZag {
public:
    /// Throws InputError unless the batch is one sequence with the usual rule of positions and no
    /// more queries than keys, and ranks >= 1.
    ZigZag(const Problem&, int ranks);

    const Problem& problem() const { return problem_; }
    int ranks() const { return ranks_; }
    const std::vector<Chunk>& chunks() const { return chunks_; }  // [2 P], by queries
    /// The two chunks of a rank in query order, which is the order of rows in its operands and
    /// results.
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

/// Divides keys into P parts of whole blocks; the last rank has the sequence's last block. Parts
/// differ by at most a block.
class SplitKeys {
public:
    /// Throws InputError like ZigZag, and if there is a window: a part's problem cannot express how
    /// far a query's window reaches into it.
    SplitKeys(const Problem&, int ranks);

    const Problem& problem() const { return problem_; }
    int ranks() const { return static_cast<int>(parts_.size()); }
    const KeyPart& of(int rank) const { return parts_[static_cast<size_t>(rank)]; }

private:
    Problem problem_;
    std::vector<KeyPart> parts_;
};

}  // namespace msa::parallel
