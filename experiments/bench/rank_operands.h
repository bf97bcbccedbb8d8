// SPDX-License-Identifier: MIT
// Operands of a layer that ranks compute together: each rank generates its own rows, equal to those
// of a single rank.
#pragma once

#include <array>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/parallel/peer_copies.h"
#include "experiments/bench/operands.h"
#include "experiments/bench/options.h"

namespace msa::experiments::bench {

/// Operands on the host, shared by the ranks: index operands with planted structure for the longest
/// sequence (shorter ones are its prefixes), and noise for q, k and v.
class RankOperands {
public:
    RankOperands(const BenchOptions&, int64_t tokens);

    const BenchOptions& o;

    /// One sequence.
    Problem problem(int64_t queries, int64_t keys) const;
    SelectionRule rule() const { return {.top_k = o.sizes.top_k}; }
    int ranks() const { return static_cast<int>(o.devices.size()); }
    std::unique_ptr<Backend> backend(int rank) const;
    std::unique_ptr<parallel::PeerCopies> peers(const parallel::Group&, Backend&) const;
    Element index_element() const { return index_.front().q.element(); }

    // Write the rows `range` of the whole operand to memory of the backend.
    void put_index_q(Backend&, void* to, QueryRange range) const;
    void put_index_k(Backend&, void* to, QueryRange range) const;
    /// `which`: 0 is q's noise, 1 k's, 2 v's. It repeats after some rows.
    void put_noise(Backend&, int which, int64_t channels, void* to, QueryRange range) const;
    /// Writes the operands of the keys `range`.
    void put_keys(Backend&, QueryRange range, void* index_k, void* k, void* v) const;

private:
    std::unique_ptr<Backend> host_;
    std::vector<IndexOperands> index_;
    std::array<std::vector<char>, 3> noise_;
};

/// Queries and results of one rank, or of all: the rows `ranges` of the whole.
struct Queries {
    Stored<3> index_q, q, out;
    Tensor<int32_t, 3> ids;
    Tensor<float, 2> lse;
    Queries(Backend&, const RankOperands&, const std::vector<QueryRange>& ranges);
};

/// Keys [range.begin, range.end) of the whole.
struct Keys {
    Stored<2> index_k;
    Stored<3> k, v;
    Keys(Backend&, const RankOperands&, QueryRange range);
};

/// Times index_select and sparse_attention of one layer on all --devices together and on the first
/// alone (core/parallel): a prefill of each length, and decoding one token after it. Compares all
/// ids, and rows of the outputs; std::logic_error if ids differ.
void bench_over_ranks(const BenchOptions&, std::span<const std::string> args, std::ostream& out,
                      std::ostream& err);

}  // namespace msa::experiments::bench
