// SPDX-License-Identifier: MIT

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ostream>

#include "core/parallel/prefill.h"
#include "experiments/bench/check_rows.h"
#include "experiments/bench/meter.h"
#include "experiments/bench/rank_operands.h"
#include "experiments/bench/record.h"
#include "experiments/report/text.h"
#include "gpu/cuda_parallel.h"

namespace msa::experiments::bench {
namespace {

using parallel::PeerCopies, parallel::SharedKeys, parallel::SplitKeys, parallel::ZigZag,
    parallel::Group;

constexpr int64_t kStepsOfLayers = 6, kGraphs = 20;  // of a decode sample on a GPU

double seconds_of(const std::function<void()>& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Rows of the outputs that are compared.
std::vector<int64_t> spread_rows(int64_t rows) {
    std::vector<int64_t> some;
    for (int64_t n = 0; n < std::min<int64_t>(256, rows); ++n)
        some.push_back(rows * n / std::min<int64_t>(256, rows));
    return some;
}

/// The answer of one GPU, on the host.
struct Answer {
    Tensor<int32_t, 3> ids;
    std::vector<int64_t> rows;
    Tensor<float, 3> out;  // of these rows
    std::vector<double> seconds;
};

Answer fetch_answer(Backend& backend, const Queries& own, std::vector<int64_t> rows) {
    Answer answer;
    answer.ids = backend.download(std::as_const(own.ids).view());
    answer.out = fetch_rows(backend, own.out, rows, 0, own.out.shape()[1]);
    answer.rows = std::move(rows);
    return answer;
}

/// How a rank's results differ from one GPU's.
struct Difference {
    int64_t ids = 0, out_values = 0;
    double out = 0;

    void operator+=(const Difference& other) {
        ids += other.ids;
        out_values += other.out_values;
        out = std::max(out, other.out);
    }
    void compare(const Answer& one, const Answer& own, QueryRange queries, int64_t row) {
        const int64_t each = one.ids.size() / std::max<int64_t>(1, one.ids.extent(0));
        for (int64_t i = 0; i < (queries.end - queries.begin) * each; ++i)
            ids += one.ids.data()[queries.begin * each + i] != own.ids.data()[row * each + i];
        const int64_t width = own.out.extent(1) * own.out.extent(2);
        for (size_t n = 0; n < own.rows.size(); ++n) {
            const int64_t query = own.rows[n] - row + queries.begin;
            const auto at = std::lower_bound(one.rows.begin(), one.rows.end(), query);
            if (own.rows[n] < row || query >= queries.end || at == one.rows.end() || *at != query)
                continue;
            const float* const want = one.out.data() + (at - one.rows.begin()) * width;
            const float* const got = own.out.data() + static_cast<int64_t>(n) * width;
            for (int64_t d = 0; d < width; ++d) {
                const double off = std::fabs(double{got[d]} - double{want[d]});
                out_values += !(off == 0);
                out = off <= out ? out : off;  // NaN stays
            }
        }
    }
};

/// Samples of every rank, and what else is known of them.
struct Measured {
    std::vector<std::vector<double>> ranks;  // [rank][sample] seconds
    std::vector<std::vector<double>> gather;
    double gather_bytes = 0;
    Difference difference;

    explicit Measured(int count)
        : ranks(static_cast<size_t>(count)), gather(static_cast<size_t>(count)) {}
};

/// The slowest rank of every sample.
std::vector<double> slowest(const std::vector<std::vector<double>>& ranks) {
    std::vector<double> most = ranks.front();
    for (const std::vector<double>& rank : ranks)
        for (size_t n = 0; n < most.size(); ++n) most[n] = std::max(most[n], rank[n]);
    return most;
}

RanksRow row_of(const char* kind, int64_t tokens, const Answer& one, const Measured& all) {
    RanksRow row{.kind = kind,
                 .tokens = tokens,
                 .ranks = std::ssize(all.ranks),
                 .seconds = median(slowest(all.ranks)),
                 .different_ids = all.difference.ids,
                 .different_out_values = all.difference.out_values,
                 .largest_out_difference = all.difference.out,
                 .one_samples = one.seconds,
                 .rank_samples = all.ranks};
    if (all.gather_bytes > 0) {
        row.gather_bytes = all.gather_bytes;
        row.gather_seconds = median(slowest(all.gather));
    }
    return row;
}

Answer prefill_alone(const RankOperands& c, int64_t tokens) {
    const std::unique_ptr<Backend> backend = c.backend(0);
    const Problem p = c.problem(tokens, tokens);
    Queries own(*backend, c, {{0, tokens}});
    const Keys keys(*backend, c, {0, tokens});
    const auto layer = [&] {
        backend->index_select(p, c.rule(), {own.index_q, keys.index_k}, own.ids);
        backend->sparse_attention(p, {own.q, keys.k, keys.v}, own.ids, {own.out, own.lse});
        backend->finish();
    };
    layer();
    std::vector<double> seconds;
    for (int64_t n = 0; n < c.o.samples; ++n) seconds.push_back(seconds_of(layer));
    Answer answer = fetch_answer(*backend, own, spread_rows(tokens));
    answer.seconds = seconds;
    return answer;
}

void prefill_of_rank(const RankOperands& c, const ZigZag& plan, const Group& workers,
                     const Answer& one, Measured& to, Difference& difference) {
    const int rank = workers.rank();
    const auto at = static_cast<size_t>(rank);
    const std::unique_ptr<Backend> backend = c.backend(rank);
    const std::unique_ptr<PeerCopies> peers = c.peers(workers, *backend);
    const analysis::LayerSizes& s = c.o.sizes;
    const int64_t tokens = plan.problem().keys();
    const Shape<3> shape{tokens, s.kv_heads, s.head_dim};
    const SharedKeys keys{{*peers, {tokens, s.index_dim}, c.index_element()},
                          {*peers, shape, s.element},
                          {*peers, shape, s.element}};
    const auto [early, late] = plan.of(rank);
    Queries own(*backend, c, {early->queries, late->queries});
    const auto row = [](const auto& rows, int64_t first) {
        return static_cast<char*>(rows.rows().data()) + first * rows.row_bytes();
    };
    for (const parallel::Chunk* chunk : {early, late})
        c.put_keys(*backend, chunk->queries, row(keys.index_k, chunk->queries.begin),
                   row(keys.k, chunk->queries.begin), row(keys.v, chunk->queries.begin));
    const auto timed = [&](const std::function<void()>& work) {
        backend->finish();
        workers.barrier();
        return seconds_of([&] {
            work();
            backend->finish();
        });
    };
    const auto layer = [&] {
        parallel::prefill(*peers, plan, c.rule(), keys, {own.index_q, own.q},
                          {own.ids, own.out, own.lse});
    };
    timed(layer);
    for (int64_t n = 0; n < c.o.samples; ++n) to.ranks[at].push_back(timed(layer));
    for (int64_t n = 0; n < c.o.samples; ++n)
        to.gather[at].push_back(timed([&] { gather(*peers, plan, keys); }));
    if (rank == 0)
        to.gather_bytes = static_cast<double>(parallel::gathered_bytes(plan, keys, rank));
    std::vector<int64_t> rows;
    const int64_t early_rows = early->problem.queries();
    for (int64_t query : one.rows)
        for (const parallel::Chunk* chunk : {early, late})
            if (query >= chunk->queries.begin && query < chunk->queries.end)
                rows.push_back(query - chunk->queries.begin + (chunk == late ? early_rows : 0));
    const Answer mine = fetch_answer(*backend, own, rows);
    difference.compare(one, mine, early->queries, 0);
    difference.compare(one, mine, late->queries, early_rows);
    workers.barrier();  // others may still read this rank's keys
}

/// Layers of a decode step behind the keys `range`, and the query at the end of `tokens`.
struct Step {
    std::vector<Keys> keys;
    Queries query;

    Step(Backend& backend, const RankOperands& c, int64_t tokens, QueryRange range)
        : query(backend, c, {{tokens - 1, tokens}}) {
        for (int64_t n = 0; n < (c.o.on_gpu() ? kStepsOfLayers : 1); ++n)
            keys.emplace_back(backend, c, range);
    }
    /// Seconds of one layer: `call(keys)` for all of them in a row, as one launch where the backend
    /// can. `meet` before every sample.
    std::vector<double> time(Backend& backend, const RankOperands& c,
                             const std::function<void(const Keys&)>& call,
                             const std::function<void()>& meet) const {
        const std::function<void()> all = [&] {
            for (const Keys& layer : keys) call(layer);
        };
        const std::function<void()> again = c.o.on_gpu() ? backend.make_graph(all) : all;
        const int64_t graphs = c.o.on_gpu() ? kGraphs : 1;
        std::vector<double> seconds;
        for (int64_t n = -1; n < c.o.samples; ++n) {
            backend.finish();
            meet();
            const double took = seconds_of([&] {
                for (int64_t graph = 0; graph < graphs; ++graph) again();
                backend.finish();
            });
            if (n >= 0) seconds.push_back(took / static_cast<double>(graphs * std::ssize(keys)));
        }
        return seconds;
    }
};

Answer decode_alone(const RankOperands& c, int64_t tokens) {
    const std::unique_ptr<Backend> backend = c.backend(0);
    const Problem p = c.problem(1, tokens);
    Step step(*backend, c, tokens, {0, tokens});
    Queries& own = step.query;
    const std::vector<double> seconds = step.time(
        *backend, c,
        [&](const Keys& keys) {
            backend->index_select(p, c.rule(), {own.index_q, keys.index_k}, own.ids);
            backend->sparse_attention(p, {own.q, keys.k, keys.v}, own.ids, {own.out, own.lse});
        },
        [] {});
    Answer answer = fetch_answer(*backend, own, {0});
    answer.seconds = seconds;
    return answer;
}

void decode_of_rank(const RankOperands& c, const SplitKeys& split, const Group& workers,
                    const Answer& one, Measured& to, Difference& difference) {
    const int rank = workers.rank();
    const std::unique_ptr<Backend> backend = c.backend(rank);
    const std::unique_ptr<PeerCopies> peers = c.peers(workers, *backend);
    const KeyRange part = split.of(rank).keys;
    Step step(*backend, c, split.problem().keys(), {part.first, part.first + part.count});
    Queries& own = step.query;
    std::unique_ptr<parallel::CudaDecode> on_gpu;
    if (c.o.on_gpu()) on_gpu = parallel::make_cuda_decode(*peers, split, c.rule());
    Answer mine;
    mine.rows = {0};
    const auto call = [&](const Keys& keys) {
        const parallel::DecodeInput in{own.index_q, keys.index_k, own.q, keys.k, keys.v};
        if (on_gpu) return on_gpu->run(in, own.ids, own.out, own.lse, true);
        parallel::DecodeOutput got = parallel::decode(workers, *backend, split, c.rule(), in);
        mine.ids = std::move(got.ids);
        mine.out = std::move(got.out);
    };
    to.ranks[static_cast<size_t>(rank)] = step.time(*backend, c, call, [&] { workers.barrier(); });
    if (on_gpu) mine = fetch_answer(*backend, own, {0});
    difference.compare(one, mine, {0, 1}, 0);
    workers.barrier();
}

using OfRank = std::function<void(const Group&, Measured&, Difference&)>;

Measured measure_ranks(const RankOperands& c, const OfRank& of_rank) {
    Measured all(c.ranks());
    std::vector<Difference> differences(static_cast<size_t>(c.ranks()));
    parallel::run_group(c.ranks(), [&](const Group& workers) {
        of_rank(workers, all, differences[static_cast<size_t>(workers.rank())]);
    });
    for (const Difference& difference : differences) all.difference += difference;
    return all;
}

}  // namespace

void bench_over_ranks(const BenchOptions& o, std::span<const std::string> args, std::ostream& out,
                      std::ostream& err) {
    if (o.on_gpu())
        if (const Support support = parallel::cuda_ranks(o.devices); !support.yes)
            throw UnsupportedError("--devices cannot answer a layer together: " + support.why_not);
    std::vector<int64_t> lengths = o.tokens;
    if (lengths.empty())
        lengths = o.on_gpu() ? std::vector<int64_t>{1 << 17, 1 << 19, 1 << 20}
                             : std::vector<int64_t>{1 << 13};
    const RankOperands c(o, *std::max_element(lengths.begin(), lengths.end()));
    Record record(o, args, c.backend(0)->device());
    const auto add = [&](const char* kind, int64_t tokens, const Answer& one, const Measured& all) {
        const RanksRow row = row_of(kind, tokens, one, all);
        record.add(row);
        err << kind << ' ' << count_text(tokens) << ": " << number_text(median(row.one_samples))
            << " s, " << number_text(row.seconds) << " s on " << c.ranks() << " ranks" << std::endl;
        if (all.difference.ids > 0)
            throw std::logic_error(concat(kind, ' ', tokens, ": ", all.difference.ids,
                                          " ids differ from those of one rank"));
        stop_case_if_asked();
    };
    const auto wants = [&](const char* name) {
        return std::find(o.cases.begin(), o.cases.end(), name) != o.cases.end();
    };
    for (int64_t tokens : lengths) {
        if (wants("decode")) {
            const SplitKeys split(c.problem(1, tokens), c.ranks());
            const Answer one = decode_alone(c, tokens);
            add("decode", tokens, one, measure_ranks(c, [&](auto& workers, auto& to, auto& off) {
                    decode_of_rank(c, split, workers, one, to, off);
                }));
        }
        if (wants("square")) {
            const ZigZag plan(c.problem(tokens, tokens), c.ranks());
            const Answer one = prefill_alone(c, tokens);
            add("square", tokens, one, measure_ranks(c, [&](auto& workers, auto& to, auto& off) {
                    prefill_of_rank(c, plan, workers, one, to, off);
                }));
        }
    }
    record.finish(out);
}

}  // namespace msa::experiments::bench
