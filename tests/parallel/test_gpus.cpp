// SPDX-License-Identifier: MIT
// One layer over two GPUs beside one of them: the same ids, and outputs to the bit where no sum has
// another order.
#include <array>

#include "core/number/half.h"
#include "core/parallel/prefill.h"
#include "gpu/cuda_parallel.h"
#include "tests/parallel/parallel_test.h"
#include "tests/parallel/scaled_test.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"

namespace msa::parallel {
namespace {

using namespace msa::test;

const Subject kGpu{"cuda", Element::bf16, Element::bf16};
constexpr std::array<int64_t, 2> kDevices{0, 1};

#define MSA_SKIP_UNLESS_TWO_GPUS()  \
    MSA_SKIP_UNLESS_USABLE("cuda"); \
    if (const Support two = cuda_ranks(kDevices); !two.yes) GTEST_SKIP() << two.why_not

Case case_of(int64_t queries, int64_t keys) {
    Problem p = square_problem(0, 32, 2, 128, 128, 128);
    p.batch = PackedBatch({0, queries}, {0, keys});
    return {"gpus", p, {.top_k = 16}};
}

struct Result {
    Tensor<int32_t, 3> ids;
    Tensor<bf16, 3> out;
    Tensor<float, 2> lse;

    Result(Backend& backend, const Case& c, int64_t rows)
        : ids(backend.make<int32_t, 3>({rows, c.problem.kv_heads, c.rule.top_k})),
          out(backend.make<bf16, 3>({rows, c.problem.query_heads, c.problem.head_dim})),
          lse(backend.make<float, 2>({rows, c.problem.query_heads})) {}
    Result(Tensor<int32_t, 3> i, Tensor<bf16, 3> o, Tensor<float, 2> l)
        : ids(std::move(i)), out(std::move(o)), lse(std::move(l)) {}
    Result on_host(Backend& backend) const {
        return {backend.download(ids.view()), backend.download(out.view()),
                backend.download(lse.view())};
    }
    test::Attention floats() const {
        Tensor<float, 3> wide(out.shape());
        for (int64_t i = 0; i < out.size(); ++i) wide.data()[i] = static_cast<float>(out.data()[i]);
        return {std::move(wide), copy_of(lse.view())};
    }
};

Result one_gpu(const Case& c, const Operands& o) {
    const std::unique_ptr<Backend> backend = backend_of_rank(kGpu);
    const Element e = kGpu.element;
    const Held<3> index_q(*backend, e, o.index_q), q(*backend, e, o.q), k(*backend, e, o.k),
        v(*backend, e, o.v);
    const Held<2> index_k(*backend, e, o.index_k);
    Result here(*backend, c, c.problem.queries());
    backend->index_select(c.problem, c.rule, {index_q, index_k}, here.ids);
    backend->sparse_attention(c.problem, {q, k, v}, here.ids, {here.out.view(), here.lse});
    return here.on_host(*backend);
}

template <int Rank>
void write_rows(Backend& backend, const ZigZag& plan, int rank, const SharedRows<Rank>& to,
                const Tensor<float, Rank>& all) {
    for (const Chunk* chunk : plan.of(rank)) {
        const KeyRange own = chunk->own_keys;
        const Held<Rank> held(backend, kGpu.element, all.view().slice(own.first, own.count));
        backend.copy(static_cast<char*>(to.rows().data()) + own.first * to.row_bytes(),
                     backend.space(), In<Rank>(held).data(), backend.space(),
                     own.count * to.row_bytes());
    }
}

TEST(TwoGpus, PrefillHasTheBitsOfOne) {
    MSA_SKIP_UNLESS_TWO_GPUS();
    const Case c = case_of(8269, 8269);
    const Operands o = make_operands(c, Element::bf16);
    const Result want = one_gpu(c, o);
    const ZigZag plan(c.problem, 2);
    parallel::run_group(2, [&](const parallel::Group& workers) {
        const int rank = workers.rank();
        const std::unique_ptr<Backend> backend = backend_of_rank(kGpu, rank);
        const std::unique_ptr<PeerCopies> peers = make_cuda_peer_copies(workers, *backend);
        const SharedKeys keys{{*peers, o.index_k.shape(), Element::bf16},
                              {*peers, o.k.shape(), Element::bf16},
                              {*peers, o.v.shape(), Element::bf16}};
        write_rows(*backend, plan, rank, keys.index_k, o.index_k);
        write_rows(*backend, plan, rank, keys.k, o.k);
        write_rows(*backend, plan, rank, keys.v, o.v);
        const auto [early, late] = plan.of(rank);
        const std::vector<QueryRange> ranges{early->queries, late->queries};
        const Held<3> index_q(*backend, Element::bf16, rows_of(o.index_q, ranges)),
            q(*backend, Element::bf16, rows_of(o.q, ranges));
        Result here(*backend, c, plan.queries_of(rank));
        for (int round = 0; round < 3; ++round)
            prefill(*peers, plan, c.rule, keys, {index_q, q},
                    {here.ids, here.out.view(), here.lse});
        const Result got = here.on_host(*backend);
        int64_t row = 0, different = 0;
        for (const QueryRange& range : ranges) {
            const int64_t count = range.end - range.begin;
            EXPECT_TRUE(close<int32_t>(got.ids.view().slice(row, count),
                                       want.ids.view().slice(range.begin, count), 0));
            EXPECT_TRUE(close<float>(got.lse.view().slice(row, count),
                                     want.lse.view().slice(range.begin, count), 0));
            const auto mine = got.out.view().slice(row, count);
            const auto one = want.out.view().slice(range.begin, count);
            for (int64_t i = 0; i < mine.size(); ++i)
                different +=
                    static_cast<float>(mine.data()[i]) != static_cast<float>(one.data()[i]);
            row += count;
        }
        EXPECT_EQ(different, 0) << "values of out, rank " << rank;
        workers.barrier();
    });
}

/// A step of `queries` behind `keys` keys, again and again with the same and as a graph.
void expect_decode(int64_t queries, int64_t keys, SelectionRule rule) {
    Case c = case_of(queries, keys);
    c.rule = rule;
    const Operands o = make_operands(c, Element::bf16);
    const Result want = one_gpu(c, o);
    const SplitKeys split(c.problem, 2);
    std::vector<Result> all;
    for (int rank = 0; rank < 2; ++rank)
        all.emplace_back(Tensor<int32_t, 3>(), Tensor<bf16, 3>(), Tensor<float, 2>());
    parallel::run_group(2, [&](const parallel::Group& workers) {
        const int rank = workers.rank();
        const KeyRange part = split.of(rank).keys;
        const std::unique_ptr<Backend> backend = backend_of_rank(kGpu, rank);
        const std::unique_ptr<PeerCopies> peers = make_cuda_peer_copies(workers, *backend);
        const Element e = Element::bf16;
        const auto own = [&](const auto& rows) {
            return rows.view().slice(part.first, part.count);
        };
        const Held<3> index_q(*backend, e, o.index_q), q(*backend, e, o.q),
            k(*backend, e, own(o.k)), v(*backend, e, own(o.v));
        const Held<2> index_k(*backend, e, own(o.index_k));
        const DecodeInput in{index_q, index_k, q, k, v};
        const std::unique_ptr<CudaDecode> step = make_cuda_decode(*peers, split, rule);
        Result here(*backend, c, queries);
        for (int round = 0; round < 5; ++round)
            step->run(in, here.ids, here.out.view(), here.lse, round % 2 == 0);
        const Result first = here.on_host(*backend);
        const std::function<void()> graph = backend->make_graph([&] {
            for (int layer = 0; layer < 3; ++layer)
                step->run(in, here.ids, here.out.view(), here.lse, true);
        });
        for (int round = 0; round < 7; ++round) graph();
        const Result last = here.on_host(*backend);
        EXPECT_TRUE(identical(last.ids, first.ids)) << "rank " << rank;
        EXPECT_TRUE(identical(last.floats().out, first.floats().out)) << "rank " << rank;
        all[static_cast<size_t>(rank)] = here.on_host(*backend);
        workers.barrier();
    });
    EXPECT_TRUE(identical(all[0].ids, want.ids));
    EXPECT_TRUE(identical(all[1].ids, want.ids));
    EXPECT_TRUE(identical(all[1].floats().out, all[0].floats().out));
    EXPECT_TRUE(identical(all[1].lse, all[0].lse));
    const test::Attention truth = reference().sparse_attention(c.problem, o, want.ids);
    EXPECT_TRUE(matches(all[0].floats(), truth, half_bounds(c.problem, o)));
}

TEST(TwoGpus, DecodeHasTheIdsOfOne) {
    MSA_SKIP_UNLESS_TWO_GPUS();
    expect_decode(1, 20000, {.top_k = 16});
    expect_decode(1, 20001, {.top_k = 16, .forced_local = 2, .forced_first = 2});
    expect_decode(2, 30011, {.top_k = 20});
}

TEST(TwoGpus, PrefillHasTheBitsOfOneWithScales) {
    MSA_SKIP_UNLESS_TWO_GPUS();
    const ScaledCase x = scaled_case(case_of(8269, 8269), Element::bf16);
    const ScaledAnswer one = scaled_answer_of_one<bf16>(*backend_of_rank(kGpu), x);
    const ZigZag plan(x.c.problem, 2);
    parallel::run_group(2, [&](const parallel::Group& workers) {
        const std::unique_ptr<Backend> backend = backend_of_rank(kGpu, workers.rank());
        const std::unique_ptr<PeerCopies> peers = make_cuda_peer_copies(workers, *backend);
        expect_rows_of(one, scaled_prefill<bf16>(*peers, plan, x, 3), plan, workers.rank());
    });
}

/// Of e4m3 with scales, in kernels that exchange their parts.
TEST(TwoGpus, DecodeHasTheIdsOfOneWithScales) {
    MSA_SKIP_UNLESS_TWO_GPUS();
    for (int64_t queries : {1, 2}) {
        const ScaledCase x = scaled_case(case_of(queries, 20001), Element::bf16);
        const Problem& p = x.c.problem;
        const ScaledAnswer one = scaled_answer_of_one<bf16>(*backend_of_rank(kGpu), x);
        const Operands floats = x.s.floats(p);
        const test::Attention truth = reference().sparse_attention(p, floats, one.ids);
        const Bounds bounds = e4m3_bounds(p, floats, *backend_of_rank(kGpu), Element::bf16);
        const SplitKeys split(p, 2);
        std::vector<test::Attention> all(2);
        parallel::run_group(2, [&](const parallel::Group& workers) {
            const int rank = workers.rank();
            const std::unique_ptr<Backend> backend = backend_of_rank(kGpu, rank);
            const std::unique_ptr<PeerCopies> peers = make_cuda_peer_copies(workers, *backend);
            const ScaledPart part(*backend, split.of(rank), x);
            const std::unique_ptr<CudaDecode> step = make_cuda_decode(*peers, split, x.c.rule);
            Result here(*backend, x.c, queries);
            for (int round = 0; round < 5; ++round)
                step->run(part.input(), here.ids, here.out.view(), here.lse, round % 2 == 0);
            const Result got = here.on_host(*backend);
            EXPECT_TRUE(identical(got.ids, one.ids)) << "rank " << rank;
            all[static_cast<size_t>(rank)] = got.floats();
            workers.barrier();
        });
        EXPECT_TRUE(identical(all[1].out, all[0].out));
        EXPECT_TRUE(identical(all[1].lse, all[0].lse));
        EXPECT_TRUE(matches(all[0], truth, bounds));
    }
}

TEST(TwoGpus, DecodeRefusesWhatItCannotDivide) {
    MSA_SKIP_UNLESS_TWO_GPUS();
    const auto refuses = [](const Case& c, const char* why) {
        const SplitKeys split(c.problem, 2);
        parallel::run_group(2, [&](const parallel::Group& workers) {
            const std::unique_ptr<Backend> backend = backend_of_rank(kGpu, workers.rank());
            const auto peers = make_cuda_peer_copies(workers, *backend);
            try {
                make_cuda_decode(*peers, split, c.rule);
                ADD_FAILURE() << "must refuse: " << why;
            } catch (const UnsupportedError& error) {
                EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
            }
            workers.barrier();
        });
    };
    refuses(case_of(16, 20000), "thread blocks of decoding are 256, must be at most 128");
    Case newest = case_of(1, 1024);
    newest.rule = {.top_k = 8, .forced_local = 6};
    refuses(newest, "the newest blocks are not all with the last rank");
}

}  // namespace
}  // namespace msa::parallel
