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

/// The blocks whose first key is one of the chunk's own.
KeyRange begun_blocks(const Chunk& chunk) {
    const KeyRange own = chunk.own_keys;
    const int64_t size = chunk.problem.block_size, first = ceil_div(own.first, size);
    return {first, ceil_div(own.first + own.count, size) - first};
}

/// Of the first blocks; of none where there are no scales.
View<const float, 2> scales_of(const std::optional<SharedRows<2>>& scales, int64_t blocks) {
    if (!scales) return {};
    return In<2>(scales->rows()).as<const float>().slice(0, blocks);
}

/// Scales [n, heads] of rows [first, first + count); those of all values as they are.
View<const float, 2> scales_of_rows(View<const float, 2> scales, int64_t first, int64_t count) {
    return scales.size() <= 1 ? scales : scales.slice(first, count);
}

void check_rows(const char* name, int64_t rows, int64_t expected, const char* of) {
    require(rows == expected, name, " has ", rows, " rows, must have the ", expected, " of the ",
            of);
}

void check_keys(const SharedKeys& keys, const Problem& p) {
    check_rows("index_k", keys.index_k.rows().shape()[0], p.keys(), "sequence's keys");
    check_rows("k", keys.k.rows().shape()[0], p.keys(), "sequence's keys");
    check_rows("v", keys.v.rows().shape()[0], p.keys(), "sequence's keys");
    if (keys.k_scales)
        check_rows("k_scales", keys.k_scales->rows().shape()[0], p.blocks(), "sequence's blocks");
    if (keys.v_scales)
        check_rows("v_scales", keys.v_scales->rows().shape()[0], p.blocks(), "sequence's blocks");
}

/// Brings the keys of others' chunks, in the order of the sequence.
class Fetching {
public:
    Fetching(PeerCopies& peers, const ZigZag& plan, const SharedKeys& keys)
        : peers_(peers), plan_(plan), keys_(keys) {
        check_keys(keys, plan.problem());
    }

    /// The chunks ahead of `end`.
    void up_to(size_t end) {
        for (; next_ < end; ++next_) {
            const Chunk& chunk = plan_.chunks()[next_];
            if (chunk.rank == peers_.rank()) continue;
            fetch(keys_.index_k, chunk, chunk.own_keys);
            fetch(keys_.k, chunk, chunk.own_keys);
            fetch(keys_.v, chunk, chunk.own_keys);
            if (keys_.k_scales) fetch(*keys_.k_scales, chunk, begun_blocks(chunk));
            if (keys_.v_scales) fetch(*keys_.v_scales, chunk, begun_blocks(chunk));
        }
        peers_.await();
    }

private:
    template <int Rank>
    void fetch(const SharedRows<Rank>& rows, const Chunk& chunk, KeyRange own) {
        const int64_t each = rows.row_bytes();
        if (own.count > 0)
            peers_.fetch(rows.memory(), chunk.rank, own.first * each, own.count * each);
    }

    PeerCopies& peers_;
    const ZigZag& plan_;
    const SharedKeys& keys_;
    size_t next_ = 0;
};

}  // namespace

void prefill(PeerCopies& peers, const ZigZag& plan, const SelectionRule& rule,
             const SharedKeys& keys, const PrefillInput& in, const PrefillOutput& to) {
    MSA_CHECK(plan.ranks() == peers.ranks());
    const int64_t rows = plan.queries_of(peers.rank());
    check_rows("index_q", in.index_q.shape()[0], rows, "rank's chunks");
    check_rows("q", in.q.shape()[0], rows, "rank's chunks");
    if (in.q_scales.size() > 1)
        check_rows("q_scales", in.q_scales.extent(0), rows, "rank's chunks");
    check_rows("ids", to.ids.extent(0), rows, "rank's chunks");
    check_rows("out", to.out.shape()[0], rows, "rank's chunks");
    check_rows("lse", to.lse.extent(0), rows, "rank's chunks");
    Backend& backend = peers.backend();
    Fetching fetching(peers, plan, keys);
    peers.open();
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
            {rows_of(in.q, row, queries),
             rows_of(In<3>(keys.k.rows()), 0, seen),
             rows_of(In<3>(keys.v.rows()), 0, seen),
             in.sinks,
             {scales_of_rows(in.q_scales, row, queries), scales_of(keys.k_scales, p.blocks()),
              scales_of(keys.v_scales, p.blocks())}},
            ids, {rows_of(to.out, row, queries), to.lse.slice(row, queries)});
        row += queries;
    }
    fetching.up_to(plan.chunks().size());  // so that all ranks have all keys
    peers.close();
}

void gather(PeerCopies& peers, const ZigZag& plan, const SharedKeys& keys) {
    Fetching fetching(peers, plan, keys);
    peers.open();
    fetching.up_to(plan.chunks().size());
    peers.close();
}

int64_t gathered_bytes(const ZigZag& plan, const SharedKeys& keys, int rank) {
    const int64_t row = keys.index_k.row_bytes() + keys.k.row_bytes() + keys.v.row_bytes();
    const int64_t block = (keys.k_scales ? keys.k_scales->row_bytes() : 0) +
                          (keys.v_scales ? keys.v_scales->row_bytes() : 0);
    int64_t bytes = 0;
    for (const Chunk& chunk : plan.chunks())
        if (chunk.rank != rank)
            bytes += chunk.own_keys.count * row + begun_blocks(chunk).count * block;
    return bytes;
}

}  // namespace msa::parallel
