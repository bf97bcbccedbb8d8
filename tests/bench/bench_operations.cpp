// SPDX-License-Identifier: MIT
// Speed of every operation of a host backend, as a share of Eigen's own sgemm in the same run.
// A case is timed only after its results matched the reference on sampled rows.
//   bench_operations [Google Benchmark options]
#include <benchmark/benchmark.h>
#include <omp.h>

#include <Eigen/Core>
#include <cmath>
#include <iostream>
#include <numeric>

#include "analysis/cost_model.h"
#include "core/random.h"
#include "tests/bench/sgemm.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"
#include "tests/support/truth.h"

namespace msa::test {
namespace {

constexpr int64_t kGemm = 2048;
constexpr int64_t kTokens = 8192, kFitQueries = 512;

Case bench_case() { return {"bench", square_problem(kTokens, 16, 4, 64, 64, 64), {.top_k = 16}}; }

/// Operands and selections of the target shape, made once.
struct Setup {
    Case c = bench_case();
    Operands operands = make_operands(c, Element::f32);
    Tensor<int32_t, 3> random_ids = random_selection();
    Tensor<int32_t, 3> structured_ids = structured_selection();
    Tensor<float, 3> scores{{kTokens, 4, c.problem.blocks()}};
    std::unique_ptr<Backend> cpu = make_backend("cpu");

    Tensor<int32_t, 3> select(const Tensor<float, 3>& from) const {
        Tensor<int32_t, 3> ids({kTokens, 4, c.rule.top_k});
        make_backend("cpu")->select_blocks(c.problem, c.rule, from, ids);
        return ids;
    }
    Tensor<int32_t, 3> random_selection() const {
        return select(normal<3>({kTokens, 4, c.problem.blocks()}, 77));
    }
    /// Own block, first block, and a pool of far blocks that changes slowly with the query.
    Tensor<int32_t, 3> structured_selection() const {
        Tensor<float, 3> preference({kTokens, 4, c.problem.blocks()});
        for (int64_t i = 0; i < kTokens; ++i)
            for (int64_t r = 0; r < 4; ++r)
                for (int64_t b = 0; b < preference.extent(2); ++b)
                    preference(i, r, b) =
                        b == 0 ? 9.0F
                               : static_cast<float>(random_normal(mix(seed(), r, b, i / 256)) +
                                                    0.3 * random_normal(mix(seed(), r, b, i)));
        return select(preference);
    }
};

Setup& setup() {
    static Setup made;
    return made;
}

/// GFLOP/s of Eigen's sgemm, measured once at the start of the run.
double sgemm_rate() {
    static const double rate = [] {
        const Eigen::MatrixXf a = Eigen::MatrixXf::Random(kGemm, kGemm);
        const Eigen::MatrixXf b = Eigen::MatrixXf::Random(kGemm, kGemm);
        Eigen::MatrixXf c(kGemm, kGemm);
        std::vector<double> seconds;
        for (int n = -1; n < 11; ++n) {  // the first is a warm-up
            const double start = omp_get_wtime();
            bench::eigen_sgemm(a.data(), b.data(), c.data(), kGemm);
            if (n < 0) continue;
            seconds.push_back(omp_get_wtime() - start);
        }
        std::nth_element(seconds.begin(), seconds.begin() + 5, seconds.end());
        return 2.0 * kGemm * kGemm * kGemm / seconds[5] * 1e-9;
    }();
    return rate;
}

/// Times `run` and reports its rate and share of sgemm.
template <typename Run>
void time_it(benchmark::State& state, double flops, const Run& run) {
    const double sgemm = sgemm_rate();
    double seconds = 0;
    for (auto _ : state) {
        const double start = omp_get_wtime();
        run();
        const double took = omp_get_wtime() - start;
        state.SetIterationTime(took);
        seconds += took;
    }
    if (flops == 0) return;
    const double rate = flops * static_cast<double>(state.iterations()) / seconds * 1e-9;
    state.counters["gflop_per_s"] = rate;
    state.counters["sgemm_gflop_per_s"] = sgemm;
    state.counters["share_of_sgemm"] = rate / sgemm;
}

/// Some rows of the case with their operands, for the check against the reference.
struct Sample {
    QueryRange range{kTokens - 65, kTokens - 62};
    Problem problem = setup().c.problem.with_queries(range);
    Operands operands = with_queries(setup().operands, range);
    Bounds b = bounds(problem, operands);

    View<const int32_t, 3> rows(const Tensor<int32_t, 3>& ids) const {
        return ids.view().slice(range.begin, range.end - range.begin);
    }
};

template <typename Verdict>
bool verified(benchmark::State& state, const Verdict& verdict) {
    if (verdict) return true;
    state.SkipWithError(("wrong result: " + std::string(verdict.message())).c_str());
    return false;
}

void sgemm(benchmark::State& state) {
    const Eigen::MatrixXf a = Eigen::MatrixXf::Random(kGemm, kGemm);
    const Eigen::MatrixXf b = Eigen::MatrixXf::Random(kGemm, kGemm);
    Eigen::MatrixXf c(kGemm, kGemm);
    time_it(state, 2.0 * kGemm * kGemm * kGemm,
            [&] { bench::eigen_sgemm(a.data(), b.data(), c.data(), kGemm); });
}

Runner cpu() { return Runner({"cpu", Element::f32}); }

void dense_attention(benchmark::State& state) {
    const Sample sample;
    if (!verified(state,
                  matches(cpu().dense_attention(sample.problem, sample.operands),
                          reference().dense_attention(sample.problem, sample.operands), sample.b)))
        return;
    Setup& s = setup();
    Tensor<float, 3> out(s.operands.q.shape());
    Tensor<float, 2> lse({kTokens, 16});
    time_it(state, analysis::dense_attention_flops(s.c.problem), [&] {
        s.cpu->dense_attention(s.c.problem, {s.operands.q, s.operands.k, s.operands.v},
                               {out.view(), lse});
    });
}

void index_scores(benchmark::State& state) {
    const Sample sample;
    if (!verified(state, close(cpu().index_scores(sample.problem, sample.operands),
                               reference().index_scores(sample.problem, sample.operands),
                               sample.b.scores)))
        return;
    Setup& s = setup();
    time_it(state, analysis::index_scores_flops(s.c.problem), [&] {
        s.cpu->index_scores(s.c.problem, {s.operands.index_q, s.operands.index_k}, s.scores);
    });
}

void index_select(benchmark::State& state) {
    const Sample sample;
    const Tensor<float, 3> scores = reference().index_scores(sample.problem, sample.operands);
    const Tensor<int32_t, 3> got =
        cpu().index_select(sample.problem, setup().c.rule, sample.operands);
    if (!verified(state,
                  selection_follows(sample.problem, setup().c.rule, scores, got, sample.b.scores)))
        return;
    Setup& s = setup();
    Tensor<int32_t, 3> ids({kTokens, 4, s.c.rule.top_k});
    time_it(state, analysis::index_scores_flops(s.c.problem), [&] {
        s.cpu->index_select(s.c.problem, s.c.rule, {s.operands.index_q, s.operands.index_k}, ids);
    });
}

void select_blocks(benchmark::State& state) {
    Setup& s = setup();
    Tensor<int32_t, 3> ids({kTokens, 4, s.c.rule.top_k});
    s.cpu->index_scores(s.c.problem, {s.operands.index_q, s.operands.index_k}, s.scores);
    const auto run = [&] { s.cpu->select_blocks(s.c.problem, s.c.rule, s.scores, ids); };
    run();
    if (!verified(state, selection_follows(s.c.problem, s.c.rule, s.scores, ids, 0))) return;
    time_it(state, 0, run);
    state.SetBytesProcessed(state.iterations() * s.scores.size() * int64_t{sizeof(float)});
}

void block_mass(benchmark::State& state) {
    const Sample sample;
    if (!verified(state,
                  matches(cpu().block_mass(sample.problem, sample.operands),
                          reference().block_mass(sample.problem, sample.operands), sample.b)))
        return;
    Setup& s = setup();
    Tensor<float, 3> mass(s.scores.shape());
    time_it(state, analysis::block_mass_flops(s.c.problem), [&] {
        s.cpu->block_mass(s.c.problem, s.operands.q, s.operands.k, {mass, {}});
    });
}

void sparse_attention(benchmark::State& state, LoopOrder order, bool structured) {
    Setup& s = setup();
    const Tensor<int32_t, 3>& ids = structured ? s.structured_ids : s.random_ids;
    const Sample sample;
    const View<const int32_t, 3> rows = sample.rows(ids);
    if (!verified(
            state,
            matches(cpu().sparse_attention(sample.problem, sample.operands, rows, order),
                    reference().sparse_attention(sample.problem, sample.operands, rows), sample.b)))
        return;
    Tensor<float, 3> out(s.operands.q.shape());
    Tensor<float, 2> lse({kTokens, 16});
    time_it(state, analysis::sparse_attention_flops(s.c.problem, ids), [&] {
        s.cpu->sparse_attention(s.c.problem, {s.operands.q, s.operands.k, s.operands.v}, ids,
                                {out.view(), lse}, order);
    });
}

/// One step of an indexer fit: kFitQueries spread queries, loss and gradient.
void index_kl(benchmark::State& state, bool full) {
    Setup& s = setup();
    std::vector<int64_t> rows(kFitQueries);
    for (int64_t i = 0; i < kFitQueries; ++i)
        rows[static_cast<size_t>(i)] = i * kTokens / kFitQueries + 7;
    const Problem p = s.c.problem.with_query_rows(rows);
    Operands o = with_queries(s.operands, {0, kFitQueries});
    Tensor<int32_t, 3> ids({kFitQueries, 4, s.c.rule.top_k});
    for (int64_t i = 0; i < kFitQueries; ++i) {
        const int64_t row = rows[static_cast<size_t>(i)];
        const auto copy = [&](const auto& from, auto& to) {
            std::copy_n(from.view()[row].data(), from.view()[row].size(), to.view()[i].data());
        };
        copy(s.operands.q, o.q);
        copy(s.operands.index_q, o.index_q);
        copy(s.structured_ids, ids);
    }
    const View<const int32_t, 3> support = full ? View<const int32_t, 3>() : ids.view();
    const Sample sample;
    const View<const int32_t, 3> sampled =
        full ? View<const int32_t, 3>() : sample.rows(s.structured_ids);
    if (!verified(state, matches(cpu().index_kl(sample.problem, sample.operands, sampled),
                                 reference().index_kl(sample.problem, sample.operands, sampled),
                                 sample.b)))
        return;
    Tensor<double, 2> kl({kFitQueries, 4});
    Tensor<float, 3> d_index_q(o.index_q.shape());
    Tensor<float, 2> d_index_k(o.index_k.shape());
    const double pairs = full ? 4 * analysis::causal_pairs(p) : analysis::selected_pairs(p, ids);
    time_it(state, analysis::index_kl_flops(p, pairs), [&] {
        s.cpu->index_kl(p, {{o.index_q, o.index_k}, o.q, o.k, support}, {kl, d_index_q, d_index_k});
    });
}

BENCHMARK(sgemm)->UseManualTime();
BENCHMARK(index_scores)->UseManualTime();
BENCHMARK(index_select)->UseManualTime();
BENCHMARK(select_blocks)->UseManualTime();
BENCHMARK(dense_attention)->UseManualTime();
BENCHMARK(block_mass)->UseManualTime();
BENCHMARK_CAPTURE(sparse_attention, union_structured, LoopOrder::tile_union, true)->UseManualTime();
BENCHMARK_CAPTURE(sparse_attention, union_random, LoopOrder::tile_union, false)->UseManualTime();
BENCHMARK_CAPTURE(sparse_attention, kv_outer_structured, LoopOrder::kv_outer, true)
    ->UseManualTime();
BENCHMARK_CAPTURE(sparse_attention, kv_outer_random, LoopOrder::kv_outer, false)->UseManualTime();
BENCHMARK_CAPTURE(index_kl, full, true)->UseManualTime();
BENCHMARK_CAPTURE(index_kl, selected, false)->UseManualTime();

}  // namespace
}  // namespace msa::test

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::AddCustomContext("device", msa::make_backend("cpu")->device());
    benchmark::AddCustomContext("problem",
                                "N 8192, Hq 16, Hkv 4, dh 64, didx 64, Bk 64, k 16, float32");
    benchmark::AddCustomContext("seed", std::to_string(msa::test::seed()));
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
