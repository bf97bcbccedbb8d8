// SPDX-License-Identifier: MIT
// One layer's prefill over several ranks: queries in zig-zag chunks, keys gathered.
#pragma once

#include "core/parallel/peer_copies.h"
#include "core/parallel/plan.h"

namespace msa::parallel {

/// Keys that every rank will hold whole; a rank writes the rows that are its own.
template <int Rank>
class SharedRows {
public:
    /// Collective: zeros.
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

/// The keys of all ranks.
struct SharedKeys {
    SharedRows<2> index_k;  // [Nk, didx]
    SharedRows<3> k, v;     // [Nk, Hkv, dh]
};

/// Operands of one rank: n = ZigZag::queries_of(rank) rows, its early chunk's and then its late
/// one's.
struct PrefillInput {
    In<3> index_q;                    // [n, Hkv, didx]
    In<3> q;                          // [n, Hq, dh]
    View<const float, 1> sinks = {};  // as in AttentionInput
};

/// Results of one rank, rows as in PrefillInput.
struct PrefillOutput {
    View<int32_t, 3> ids;  // [n, Hkv, k]
    Out<3> out;            // [n, Hq, dh]
    View<float, 2> lse;    // [n, Hq]
};

/// Collective: index_select and sparse_attention of a rank's queries. A rank's own rows of `keys`
/// must be there, and those ahead of all queries; the others' come by chunks, in the order of the
/// sequence, and a chunk is begun as soon as the keys up to its end are there.
///
/// ids, and out and lse too, are to the bit those of one rank, as far as the backend's answer to a
/// query does not hang on which other queries its call has: cpu and reference do not, nor do
/// cuda's kernels while the chunks are long enough for the same kernel.
void prefill(PeerCopies&, const ZigZag&, const SelectionRule&, const SharedKeys& keys,
             const PrefillInput&, const PrefillOutput&);

/// Collective: the copies of prefill() alone, of all keys to all ranks.
void gather(PeerCopies&, const ZigZag&, const SharedKeys& keys);

/// Bytes that prefill() brings to a rank.
int64_t gathered_bytes(const ZigZag&, const SharedKeys& keys, int rank);

}  // namespace msa::parallel
