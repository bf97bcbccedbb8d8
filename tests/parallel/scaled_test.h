// SPDX-License-Identifier: MIT
// One layer of e4m3 operands with scales over several ranks. Index operands are `index`, outputs T.
#pragma once

#include <utility>
#include <vector>

#include "core/parallel/decode.h"
#include "core/parallel/prefill.h"
#include "tests/parallel/parallel_test.h"
#include "tests/support/compare.h"
#include "tests/support/scaled.h"

namespace msa::test {

struct ScaledCase {
    Case c;
    Element index;
    Operands o;        // of which the Index Branch is read
    ScaledOperands s;  // the rest
};

inline ScaledCase scaled_case(Case c, Element index) {
    Operands o = make_operands(c, index);
    ScaledOperands s = store_scaled(c.problem, o, false);
    return {std::move(c), index, std::move(o), std::move(s)};
}

struct ScaledAnswer {
    Tensor<int32_t, 3> ids;
    Attention found;
};
template <typename T>
ScaledAnswer scaled_answer_of_one(Backend& backend, const ScaledCase& x) {
    const Problem& p = x.c.problem;
    const Held<3> index_q(backend, x.index, x.o.index_q);
    const Held<2> index_k(backend, x.index, x.o.index_k);
    auto ids = backend.make<int32_t, 3>({p.queries(), p.kv_heads, x.c.rule.top_k});
    backend.index_select(p, x.c.rule, {index_q, index_k}, ids);
    Tensor<int32_t, 3> here = backend.download(std::as_const(ids).view());
    Attention found =
        sparse_attention(backend, p, x.s, here, LoopOrder::automatic, ElementOf<T>::value);
    return {std::move(here), std::move(found)};
}

/// Rows [first, first + count) of a host tensor, at the same rows of what all ranks share.
template <typename T, int Rank>
void share_rows(Backend& backend, const parallel::SharedRows<Rank>& to, const Tensor<T, Rank>& all,
                int64_t first, int64_t count) {
    if (count == 0) return;
    backend.copy(static_cast<char*>(to.rows().data()) + first * to.row_bytes(), backend.space(),
                 all.view().slice(first, count).data(), Space::host, count * to.row_bytes());
}

/// What a rank of a prefill has, before it gathers the rest: zeros there, which are no scales.
inline parallel::SharedKeys scaled_keys(parallel::PeerCopies& peers, const parallel::ZigZag& plan,
                                        const ScaledCase& x) {
    using parallel::SharedRows;
    Backend& backend = peers.backend();
    parallel::SharedKeys keys{{peers, x.o.index_k.shape(), x.index},
                              {peers, x.o.k.shape(), Element::e4m3},
                              {peers, x.o.v.shape(), Element::e4m3},
                              SharedRows<2>(peers, x.s.k.scales.shape(), Element::f32),
                              SharedRows<2>(peers, x.s.v.scales.shape(), Element::f32)};
    const auto own = [&](KeyRange range) {
        if (range.count == 0) return;
        const Held<2> rows(backend, x.index, x.o.index_k.view().slice(range.first, range.count));
        const int64_t bytes = keys.index_k.row_bytes();
        backend.copy(static_cast<char*>(keys.index_k.rows().data()) + range.first * bytes,
                     backend.space(), In<2>(rows).data(), backend.space(), range.count * bytes);
        share_rows(backend, keys.k, x.s.k.values, range.first, range.count);
        share_rows(backend, keys.v, x.s.v.values, range.first, range.count);
        const int64_t size = x.c.problem.block_size, block = ceil_div(range.first, size),
                      blocks = ceil_div(range.first + range.count, size) - block;
        share_rows(backend, *keys.k_scales, x.s.k.scales, block, blocks);
        share_rows(backend, *keys.v_scales, x.s.v.scales, block, blocks);
    };
    own({0, plan.problem().keys() - plan.problem().queries()});
    for (const parallel::Chunk* chunk : plan.of(peers.rank())) own(chunk->own_keys);
    return keys;
}

/// Of the rank's queries, after `rounds` times.
template <typename T>
ScaledAnswer scaled_prefill(parallel::PeerCopies& peers, const parallel::ZigZag& plan,
                            const ScaledCase& x, int rounds) {
    Backend& backend = peers.backend();
    const Problem& p = x.c.problem;
    const parallel::SharedKeys keys = scaled_keys(peers, plan, x);
    const auto [early, late] = plan.of(peers.rank());
    const std::vector<QueryRange> ranges{early->queries, late->queries};
    const Held<3> index_q(backend, x.index, rows_of(x.o.index_q, ranges));
    const Tensor<e4m3, 3> q = backend.upload(rows_of(x.s.q.values, ranges).view());
    const Tensor<float, 2> q_scales = backend.upload(rows_of(x.s.q.scales, ranges).view());
    const int64_t rows = plan.queries_of(peers.rank());
    auto ids = backend.make<int32_t, 3>({rows, p.kv_heads, x.c.rule.top_k});
    auto out = backend.make<T, 3>({rows, p.query_heads, p.head_dim});
    auto lse = backend.make<float, 2>({rows, p.query_heads});
    for (int round = 0; round < rounds; ++round)
        prefill(peers, plan, x.c.rule, keys, {index_q, q, {}, q_scales}, {ids, out.view(), lse});
    const Tensor<T, 3> got = backend.download(std::as_const(out).view());
    Tensor<float, 3> wide(got.shape());
    for (int64_t i = 0; i < got.size(); ++i) wide.data()[i] = static_cast<float>(got.data()[i]);
    ScaledAnswer answer{backend.download(std::as_const(ids).view()),
                        {std::move(wide), backend.download(std::as_const(lse).view())}};
    peers.group().barrier();  // others may still read this rank's keys
    return answer;
}

/// The rows of a rank's two chunks are those of one rank, to the bit.
inline void expect_rows_of(const ScaledAnswer& one, const ScaledAnswer& got,
                           const parallel::ZigZag& plan, int rank) {
    int64_t row = 0;
    for (const parallel::Chunk* chunk : plan.of(rank)) {
        const int64_t first = chunk->queries.begin, count = chunk->problem.queries();
        const auto same = [&](const auto& mine, const auto& its) {
            EXPECT_TRUE(close(mine.view().slice(row, count), its.view().slice(first, count), 0))
                << "rank " << rank;
        };
        same(got.ids, one.ids);
        same(got.found.out, one.found.out);
        same(got.found.lse, one.found.lse);
        row += count;
    }
}

/// The operands of one rank's part of a decode step, in its backend's memory.
class ScaledPart {
public:
    ScaledPart(Backend& backend, const parallel::KeyPart& part, const ScaledCase& x)
        : index_q_(backend, x.index, x.o.index_q),
          index_k_(backend, x.index, x.o.index_k.view().slice(part.keys.first, part.keys.count)),
          q_(backend.upload(x.s.q.values.view())),
          k_(backend.upload(x.s.k.values.view().slice(part.keys.first, part.keys.count))),
          v_(backend.upload(x.s.v.values.view().slice(part.keys.first, part.keys.count))),
          of_q_(backend.upload(x.s.q.scales.view())),
          of_k_(backend.upload(x.s.k.scales.view().slice(part.first_block, part.blocks))),
          of_v_(backend.upload(x.s.v.scales.view().slice(part.first_block, part.blocks))) {}
    parallel::DecodeInput input() const {
        return {index_q_, index_k_, q_, k_, v_, {}, {of_q_, of_k_, of_v_}};
    }

private:
    Held<3> index_q_;
    Held<2> index_k_;
    Tensor<e4m3, 3> q_, k_, v_;
    Tensor<float, 2> of_q_, of_k_, of_v_;
};

}  // namespace msa::test
