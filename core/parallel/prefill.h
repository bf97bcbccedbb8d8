// SPDX-License-Identifier: MIT
// One layer's prefill over several ranks: queries in zig-zag chunks, keys gathered.
#pragma once

#include <optional>

#include "core/parallel/peer_copies.h"
#include "core/parallel/plan.h"

namespace msa::parallel {

/// A key tensor that every rank holds whole; a rank writes its own rows.
template <int Rank>
class SharedRows {
public:
    /// Collective: allocates zeros.
    SharedRows(PeerCopies& peers, Shape<Rank> shape, Element element)
        : memory_(peers.share(element_count(shape) * element_bytes(element))),
          rows_(memory_.own.get(), shape, element, peers.backend().space()) {}

    const SharedMemory& memory() const { return memory_; }
    Out<Rank> rows() const { return rows_; }
    int64_t row_bytes() const {
        int64_t bytes = element_bytes(rows_.element());
        for (size_t axis = 1; axis < Rank; ++axis) bytes *= rows_.shape()[axis];
        return bytes;
    }

private:
    SharedMemory memory_;
    Out<Rank> rows_;
};

/// The keys of all ranks, one sequence. What takes them throws InputError for another number of
/// rows.
struct SharedKeys {
    SharedRows<2> index_k;  // [Nk, didx]
    SharedRows<3> k, v;     // [Nk, Hkv, dh]
    /// [blocks, Hkv] f32, of e4m3 keys and values; absent: 1. The rank whose own key is the first
    /// of a block has its scale.
    std::optional<SharedRows<2>> k_scales = {}, v_scales = {};
};

/// Operands of one rank: n = ZigZag::queries_of(rank) rows, first its early chunk's, then its late
/// one's.
struct PrefillInput {
    In<3> index_q;                       // [n, Hkv, didx]
    In<3> q;                             // [n, Hq, dh]
    View<const float, 1> sinks = {};     // as in AttentionInput
    View<const float, 2> q_scales = {};  // [n, Hq] of e4m3 queries, or [1, 1]; absent: 1
};

/// Results of one rank, rows as in PrefillInput.
struct PrefillOutput {
    View<int32_t, 3> ids;  // [n, Hkv, k]
    Out<3> out;            // [n, Hq, dh]
    View<float, 2> lse;    // [n, Hq]
};

/// Collective: index_select and sparse_attention for a rank's queries. The rank's own rows of
/// `keys` must be written, and those before all queries, with their scales. The other ranks' rows
/// arrive chunk by chunk in sequence order; a chunk of queries starts as soon as all keys up to its
/// end are there.
///
/// ids, out and lse equal those of one rank bit by bit if a query's result does not depend on the
/// other queries of its call. That holds for cpu and reference, and for cuda if the chunks are long
/// enough for the same kernels.
void prefill(PeerCopies&, const ZigZag&, const SelectionRule&, const SharedKeys& keys,
             const PrefillInput&, const PrefillOutput&);

/// Collective: only the copies of prefill(), of all keys to all ranks.
void gather(PeerCopies&, const ZigZag&, const SharedKeys& keys);

/// Bytes that prefill() copies to a rank.
int64_t gathered_bytes(const ZigZag&, const SharedKeys& keys, int rank);

}  // namespace msa::parallel
