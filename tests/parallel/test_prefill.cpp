// SPDX-License-Identifier: MIT
// A prefill over several ranks, threads of this process, beside that of one.
#include <cmath>
#include <functional>

#include "core/parallel/prefill.h"
#include "tests/parallel/parallel_test.h"
#include "tests/parallel/scaled_test.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace msa::parallel {
namespace {

using namespace msa::test;

struct Answer {
    Tensor<int32_t, 3> ids;
    Tensor<float, 3> out;
    Tensor<float, 2> lse;
};

Answer make_answer(const Case& c, int64_t rows) {
    const Problem& p = c.problem;
    return {Tensor<int32_t, 3>({rows, p.kv_heads, c.rule.top_k}),
            Tensor<float, 3>({rows, p.query_heads, p.head_dim}),
            Tensor<float, 2>({rows, p.query_heads})};
}

Answer answer_of_one(const Subject& subject, const Case& c, const Operands& o) {
    const Problem& p = c.problem;
    const std::unique_ptr<Backend> backend = backend_of_rank(subject);
    const Element e = subject.element;
    const Held<3> index_q(*backend, e, o.index_q), q(*backend, e, o.q), k(*backend, e, o.k),
        v(*backend, e, o.v);
    const Held<2> index_k(*backend, e, o.index_k);
    Tensor<float, 1> sinks;
    if (o.sinks.data() != nullptr) sinks = backend->upload(o.sinks.view());
    Answer here = make_answer(c, p.queries());
    auto ids = backend->make<int32_t, 3>(here.ids.shape());
    auto out = backend->make<float, 3>(here.out.shape());
    auto lse = backend->make<float, 2>(here.lse.shape());
    backend->index_select(p, c.rule, {index_q, index_k}, ids);
    backend->sparse_attention(p, {q, k, v, sinks}, ids, {out.view(), lse});
    backend->download(View<const int32_t, 3>(ids), here.ids.view());
    backend->download(View<const float, 3>(out), here.out.view());
    backend->download(View<const float, 2>(lse), here.lse.view());
    return here;
}

/// Writes a rank's own rows of keys; all others stay NaN until they are gathered.
template <int Rank>
void write_own(Backend& backend, const ZigZag& plan, int rank, const SharedRows<Rank>& to,
               const Tensor<float, Rank>& all) {
    const Element e = to.rows().element();
    const auto write = [&](View<const float, Rank> rows, int64_t first) {
        if (rows.size() == 0) return;
        const Held<Rank> held(backend, e, rows);
        const In<Rank> from = held;
        backend.copy(static_cast<char*>(to.rows().data()) + first * to.row_bytes(), backend.space(),
                     from.data(), backend.space(), rows.extent(0) * to.row_bytes());
    };
    Tensor<float, Rank> poison(all.shape());
    std::fill_n(poison.data(), poison.size(), NAN);
    write(poison.view(), 0);
    const int64_t ahead = plan.problem().keys() - plan.problem().queries();
    write(all.view().slice(0, ahead), 0);
    for (const Chunk* chunk : plan.of(rank))
        write(all.view().slice(chunk->own_keys.first, chunk->own_keys.count),
              chunk->own_keys.first);
}

template <typename T, int Rank>
void put_rows(View<const T, Rank> from, const ZigZag& plan, int rank, Tensor<T, Rank>& to) {
    int64_t row = 0;
    for (const Chunk* chunk : plan.of(rank)) {
        const int64_t count = chunk->problem.queries();
        const auto part = from.slice(row, count);
        std::copy_n(part.data(), part.size(), to.view().slice(chunk->queries.begin, count).data());
        row += count;
    }
}

/// The same by `ranks` ranks, put together.
Answer answer_of(const Subject& subject, const Case& c, const Operands& o, int ranks) {
    const Problem& p = c.problem;
    const ZigZag plan(p, ranks);
    Answer all = make_answer(c, p.queries());
    parallel::run_group(ranks, [&](const parallel::Group& workers) {
        const int rank = workers.rank();
        const std::unique_ptr<Backend> backend = backend_of_rank(subject);
        const std::unique_ptr<PeerCopies> peers = make_peer_copies(workers, *backend);
        const Element e = subject.element;
        const SharedKeys keys{
            {*peers, o.index_k.shape(), e}, {*peers, o.k.shape(), e}, {*peers, o.v.shape(), e}};
        write_own(*backend, plan, rank, keys.index_k, o.index_k);
        write_own(*backend, plan, rank, keys.k, o.k);
        write_own(*backend, plan, rank, keys.v, o.v);
        const auto [early, late] = plan.of(rank);
        const std::vector<QueryRange> rows{early->queries, late->queries};
        const Held<3> index_q(*backend, e, rows_of(o.index_q, rows)),
            q(*backend, e, rows_of(o.q, rows));
        Tensor<float, 1> sinks;
        if (o.sinks.data() != nullptr) sinks = backend->upload(o.sinks.view());
        const Answer shape = make_answer(c, plan.queries_of(rank));
        auto ids = backend->make<int32_t, 3>(shape.ids.shape());
        auto out = backend->make<float, 3>(shape.out.shape());
        auto lse = backend->make<float, 2>(shape.lse.shape());
        for (int round = 0; round < 2; ++round)  // what was gathered stays right
            prefill(*peers, plan, c.rule, keys, {index_q, q, sinks}, {ids, out.view(), lse});
        const auto got_ids = backend->download(View<const int32_t, 3>(ids));
        const auto got_out = backend->download(View<const float, 3>(out));
        const auto got_lse = backend->download(View<const float, 2>(lse));
        put_rows(got_ids.view(), plan, rank, all.ids);
        put_rows(got_out.view(), plan, rank, all.out);
        put_rows(got_lse.view(), plan, rank, all.lse);
        workers.barrier();  // others may still read this rank's keys
    });
    return all;
}

class ParallelPrefill : public SubjectTest {};
MSA_FOR_ALL_SUBJECTS(ParallelPrefill);

TEST_P(ParallelPrefill, HasTheBitsOfOneRank) {
    std::vector<Case> all = divisible_cases(true);
    // Chunks of several tiles, with and without a prefix.
    Problem longer = square_problem(555, 4, 2, 32, 16, 16);
    all.push_back({"longer", longer, {.top_k = 5, .forced_first = 1}});
    longer.batch = PackedBatch({0, 350}, {0, 555});
    all.push_back({"longer_prefix", longer, {.top_k = 5}});
    for (const Case& c : all) {
        const Operands o = make_operands(c, GetParam().element);
        const Answer want = answer_of_one(GetParam(), c, o);
        for (int ranks : rank_counts(GetParam())) {
            const Answer got = answer_of(GetParam(), c, o, ranks);
            EXPECT_TRUE(identical(got.ids, want.ids)) << c << ", " << ranks << " ranks";
            EXPECT_TRUE(identical(got.out, want.out)) << c << ", " << ranks << " ranks";
            EXPECT_TRUE(identical(got.lse, want.lse)) << c << ", " << ranks << " ranks";
        }
    }
}

/// e4m3 with scales. With a prefix of 205 keys, a block of 16 lies in the chunks of two ranks.
TEST(ParallelPrefill, HasTheBitsOfOneRankWithScales) {
    for (const char* name : {"reference", "cpu"})
        for (int64_t queries : {555, 350}) {
            Problem p = square_problem(555, 4, 2, 32, 16, 16);
            p.batch = PackedBatch({0, queries}, {0, 555});
            const ScaledCase x = scaled_case({"scaled", p, {.top_k = 5}}, Element::f32);
            const ScaledAnswer one = scaled_answer_of_one<float>(*make_backend(name), x);
            for (int ranks : {1, 2, 5}) {
                const ZigZag plan(p, ranks);
                parallel::run_group(ranks, [&](const parallel::Group& workers) {
                    const auto backend = backend_of_rank({name});
                    const auto peers = make_peer_copies(workers, *backend);
                    expect_rows_of(one, scaled_prefill<float>(*peers, plan, x, 2), plan,
                                   workers.rank());
                });
            }
        }
}

TEST(ParallelPrefill, GathersAllKeysToAll) {
    const Problem p = square_problem(700, 4, 2, 32, 16, 16);
    const ZigZag plan(p, 3);
    const Tensor<float, 2> index_k = normal<2>({p.keys(), p.index_dim}, 5);
    const Tensor<float, 3> k = normal<3>({p.keys(), p.kv_heads, p.head_dim}, 2);
    parallel::run_group(3, [&](const parallel::Group& workers) {
        const std::unique_ptr<Backend> backend = make_backend("cpu");
        const std::unique_ptr<PeerCopies> peers = make_peer_copies(workers, *backend);
        const SharedKeys keys{{*peers, index_k.shape(), Element::f32},
                              {*peers, k.shape(), Element::f32},
                              {*peers, k.shape(), Element::f32}};
        write_own(*backend, plan, workers.rank(), keys.index_k, index_k);
        write_own(*backend, plan, workers.rank(), keys.k, k);
        write_own(*backend, plan, workers.rank(), keys.v, k);
        gather(*peers, plan, keys);
        EXPECT_TRUE(
            close(View<const float, 2>(keys.index_k.rows().as<float>()), index_k.view(), 0));
        EXPECT_TRUE(close(View<const float, 3>(keys.k.rows().as<float>()), k.view(), 0));
        EXPECT_TRUE(close(View<const float, 3>(keys.v.rows().as<float>()), k.view(), 0));
        const int64_t others = p.queries() - plan.queries_of(workers.rank());
        EXPECT_EQ(gathered_bytes(plan, keys, workers.rank()), others * 4 * (16 + 2 * 2 * 32));
        SharedKeys scaled = keys;
        scaled.k_scales.emplace(*peers, Shape<2>{p.blocks(), p.kv_heads}, Element::f32);
        int64_t blocks = 0;
        for (const Chunk& chunk : plan.chunks())
            if (chunk.rank != workers.rank()) blocks += ceil_div(chunk.own_keys.count, 16);
        EXPECT_EQ(gathered_bytes(plan, scaled, workers.rank()),
                  gathered_bytes(plan, keys, workers.rank()) + blocks * 4 * 2);
        workers.barrier();
    });
}

TEST(ParallelPrefill, RefusesScalesOfOtherQueries) {
    const Problem p = square_problem(64, 4, 2, 32, 16, 16);
    const ScaledCase x = scaled_case({"scaled", p, {.top_k = 2}}, Element::f32);
    const ZigZag plan(p, 1);
    parallel::run_group(1, [&](const parallel::Group& workers) {
        const auto backend = make_backend("cpu");
        const auto peers = make_peer_copies(workers, *backend);
        auto ids = backend->make<int32_t, 3>({64, 2, 2});
        auto out = backend->make<float, 3>({64, 4, 32});
        auto lse = backend->make<float, 2>({64, 4});
        const PrefillInput in{
            x.o.index_q.view(), x.s.q.values.view(), {}, x.s.q.scales.view().slice(0, 63)};
        EXPECT_THROW(prefill(*peers, plan, x.c.rule, scaled_keys(*peers, plan, x), in,
                             {ids, out.view(), lse}),
                     InputError);
    });
}

/// One row fewer would be read behind the end, one more would be of another sequence.
TEST(ParallelPrefill, RefusesKeysOfOtherRows) {
    const Problem p = square_problem(64, 4, 2, 32, 16, 16);
    const ScaledCase x = scaled_case({"scaled", p, {.top_k = 2}}, Element::f32);
    const ZigZag plan(p, 1);
    parallel::run_group(1, [&](const parallel::Group& workers) {
        const auto backend = make_backend("cpu");
        const auto peers = make_peer_copies(workers, *backend);
        auto ids = backend->make<int32_t, 3>({64, 2, 2});
        auto out = backend->make<float, 3>({64, 4, 32});
        auto lse = backend->make<float, 2>({64, 4});
        const PrefillInput in{x.o.index_q.view(), x.s.q.values.view(), {}, x.s.q.scales.view()};
        const auto refused = [&](const std::string& said, const auto& change) {
            SharedKeys keys = scaled_keys(*peers, plan, x);
            change(keys);
            for (const std::function<void()>& call : std::vector<std::function<void()>>{
                     [&] { gather(*peers, plan, keys); },
                     [&] {
                         prefill(*peers, plan, x.c.rule, keys, in, {ids, out.view(), lse});
                     }})
                try {
                    call();
                    ADD_FAILURE() << "not refused: " << said;
                } catch (const InputError& error) {
                    EXPECT_EQ(error.what(), said);
                }
        };
        refused("index_k has 63 rows, must have the 64 of the sequence's keys",
                [&](SharedKeys& keys) {
                    keys.index_k = {*peers, {63, 16}, Element::f32};
                });
        refused("k has 65 rows, must have the 64 of the sequence's keys", [&](SharedKeys& keys) {
            keys.k = {*peers, {65, 2, 32}, Element::e4m3};
        });
        refused("v has 63 rows, must have the 64 of the sequence's keys", [&](SharedKeys& keys) {
            keys.v = {*peers, {63, 2, 32}, Element::e4m3};
        });
        refused("k_scales has 3 rows, must have the 4 of the sequence's blocks",
                [&](SharedKeys& keys) {
                    keys.k_scales.emplace(*peers, Shape<2>{3, 2}, Element::f32);
                });
        refused("v_scales has 5 rows, must have the 4 of the sequence's blocks",
                [&](SharedKeys& keys) {
                    keys.v_scales.emplace(*peers, Shape<2>{5, 2}, Element::f32);
                });
    });
}

TEST(ParallelPrefill, AnErrorOfOneRankEndsAll) {
    const Problem p = square_problem(64, 4, 2, 32, 16, 16);
    const ZigZag plan(p, 2);
    EXPECT_THROW(parallel::run_group(2,
                                     [&](const parallel::Group& workers) {
                                         const auto backend = make_backend("cpu");
                                         const auto peers = make_peer_copies(workers, *backend);
                                         if (!workers.is_first()) throw InputError("it fails");
                                         peers->open();
                                     }),
                 InputError);
}

}  // namespace
}  // namespace msa::parallel
