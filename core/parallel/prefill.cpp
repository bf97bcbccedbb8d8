// SPDX-License-Identifier: MIT
#include "core/parallel/prefill.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace msa::parallel {
namespace {

/// Rows [first, first + count) of an operand or a result.
template <typename Void, int Rank>
AnyView<Void, Rank> rows_of(const AnyView<Void, Rank>& all, int64_t first, int64_t count) {
    Shape<Rank> shape = all.shape();
    const int64_t each = shape[0] > 0 ? element_count(shape) / shape[0] : 0;
    shape[0] = count;
    using Byte = std::conditional_t<std::is_const_v<Void>, const char, char>;
    return {static_cast<Byte*>(all.data()) + first * each * element_bytes(all.element()), shape,
            all.element(), all.space()};
}

/// Brings the keys of others' chunks, in the order of the sequence.
class Fetching {
public:
    Fetching(PeerCopies& peers, const ZigZag& plan, const SharedKeys& keys)
        : peers_(peers), plan_(plan), keys_(keys) {}

    /// The chunks ahead of `end`.
    void up_to(size_t end) {
        for (; next_ < end; ++next_) {
            const Chunk& chunk = plan_.chunks()[next_];
            if (chunk.rank == peers_.rank()) continue;
            fetch(keys_.index_k, chunk);
            fetch(keys_.k, chunk);
            fetch(keys_.v, chunk);
        }
        peers_.await();
    }

private:
    template <int Rank>
    void fetch(const SharedRows<Rank>& rows, const Chunk& chunk) {
        const int64_t each = rows.row_bytes();
        if (chunk.own_keys.count > 0)
            peers_.fetch(rows.memory(), chunk.rank, chunk.own_keys.first * each,
                         chunk.own_keys.count * each);
    }

    PeerCopies& peers_;
    const ZigZag& plan_;
    const SharedKeys& keys_;
    size_t next_ = 0;
};

void check_rows(const char* name, int64_t rows, int64_t expected) {
    require(rows == expected, name, " has ", rows, " rows, must have the ", expected,
            " of the rank's chunks");
}

}  // namespace

void prefill(PeerCopies& peers, const ZigZag& plan, const SelectionRule& rule,
             const SharedKeys& keys, const PrefillInput& in, const PrefillOutput& to) {
    MSA_CHECK(plan.ranks() == peers.ranks());
    const int64_t rows = plan.queries_of(peers.rank());
    check_rows("index_q", in.index_q.shape()[0], rows);
    check_rows("q", in.q.shape()[0], rows);
    check_rows("ids", to.ids.extent(0), rows);
    check_rows("out", to.out.shape()[0], rows);
    check_rows("lse", to.lse.extent(0), rows);
    Backend& backend = peers.backend();
    peers.open();
    Fetching fetching(peers, plan, keys);
    int64_t row = 0;
    for (const Chunk* chunk : plan.of(peers.rank())) {
        fetching.up_to(static_cast<size_t>(chunk - plan.chunks().data()));
        const Problem& p = chunk->problem;
        const int64_t queries = p.queries(), seen = p.keys();
        const View<int32_t, 3> ids = to.ids.slice(row, queries);
        backend.index_select(
            p, rule,
            {rows_of(in.index_q, row, queries), rows_of(In<2>(keys.index_k.rows()), 0, seen)}, ids);
        backend.sparse_attention(
            p,
            {rows_of(in.q, row, queries), rows_of(In<3>(keys.k.rows()), 0, seen),
             rows_of(In<3>(keys.v.rows()), 0, seen), in.sinks},
            ids, {rows_of(to.out, row, queries), to.lse.slice(row, queries)});
        row += queries;
    }
    fetching.up_to(plan.chunks().size());  // so that all ranks have all keys
    peers.close();
}

void gather(PeerCopies& peers, const ZigZag& plan, const SharedKeys& keys) {
    peers.open();
    Fetching(peers, plan, keys).up_to(plan.chunks().size());
    peers.close();
}

int64_t gathered_bytes(const ZigZag& plan, const SharedKeys& keys, int rank) {
    const int64_t row = keys.index_k.row_bytes() + keys.k.row_bytes() + keys.v.row_bytes();
    return (plan.problem().queries() - plan.queries_of(rank)) * row;
}

}  // namespace msa::parallel
