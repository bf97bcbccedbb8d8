// SPDX-License-Identifier: MIT
// The stages of MSA on one GPU at the paper's sizes (Hq 64, Hkv 4, dh and didx 128, Bk 128, k 16),
// bf16, timed through the Backend interface: wall clock around a call and finish(), a cold L2,
// median of the samples. Selections: random, and structured (first block, own block, and a pool of
// far blocks of which one in 14 changes from query to query).
//
// bench_cuda OUT.json [most tokens]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "analysis/cost_model.h"
#include "core/half.h"
#include "core/random.h"
#include "gpu/cuda_backend.h"

namespace {

using namespace msa;

constexpr int64_t kHeads = 64, kGroups = 4, kDim = 128, kBlock = 128, kTopK = 16;
constexpr int64_t kFlushBytes = int64_t{1} << 28;

/// Normal values, a repeated run of 2^20 of them with a prime offset per row, so that making a
/// gigabyte takes no minutes.
template <int Rank>
Tensor<bf16, Rank> random_values(Backend& backend, Shape<Rank> shape, uint64_t seed) {
    constexpr int64_t kRun = int64_t{1} << 20;
    std::vector<bf16> run(static_cast<size_t>(kRun));
    for (int64_t i = 0; i < kRun; ++i)
        run[static_cast<size_t>(i)] = bf16(static_cast<float>(random_normal(mix(seed, i))));
    Tensor<bf16, Rank> host(shape);
    const int64_t width = kDim;
#pragma omp parallel for
    for (int64_t row = 0; row < host.size() / width; ++row) {
        const auto at = static_cast<int64_t>(mix(seed, row, 1) % (kRun - width));
        std::memcpy(host.data() + row * width, run.data() + at, width * sizeof(bf16));
    }
    return backend.upload(host.view());
}

Tensor<int32_t, 3> make_ids(const Problem& p, bool structured) {
    Tensor<int32_t, 3> ids({p.queries(), kGroups, kTopK});
#pragma omp parallel for
    for (int64_t q = 0; q < p.queries(); ++q)
        for (int64_t g = 0; g < kGroups; ++g) {
            const int64_t local = (p.keys() - p.queries() + q) / kBlock;
            std::vector<int32_t> row{static_cast<int32_t>(local)};
            if (structured && local > 0) row.push_back(0);
            constexpr int64_t kPeriod = 14;
            for (int64_t j = 0; std::ssize(row) < std::min(kTopK, local + 1); ++j) {
                const uint64_t key =
                    structured ? mix(7, g, j, (q + static_cast<int64_t>(mix(j) % 1000)) / kPeriod)
                               : mix(8, g, q, j);
                const auto id = static_cast<int32_t>(key % static_cast<uint64_t>(local + 1));
                if (std::find(row.begin(), row.end(), id) == row.end()) row.push_back(id);
            }
            std::sort(row.begin(), row.end());
            for (int64_t i = 0; i < kTopK; ++i)
                ids(q, g, i) = i < std::ssize(row) ? row[static_cast<size_t>(i)] : kNoBlock;
        }
    return ids;
}

class Bench {
public:
    Bench() : backend_(make_backend("cuda")), flush_(backend_->make<char, 1>({kFlushBytes})) {}

    Backend& backend() { return *backend_; }

    template <typename Run>
    void time(const std::string& stage, const Problem& p, double flops, int samples, Run run) {
        using Clock = std::chrono::steady_clock;
        std::vector<double> microseconds;
        const std::vector<char> zeros(1);
        run();
        for (int i = 0; i < samples; ++i) {
            backend_->copy(flush_.data(), Space::device, flush_.data() + kFlushBytes / 2,
                           Space::device, kFlushBytes / 2);
            backend_->finish();
            const auto begin = Clock::now();
            run();
            backend_->finish();
            microseconds.push_back(
                std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
        }
        std::vector<double> sorted = microseconds;
        std::sort(sorted.begin(), sorted.end());
        const double median = sorted[sorted.size() / 2];
        const double rate = flops / median * 1e-6;
        std::printf("%-34s Nq %7lld Nk %7lld  %12.1f us  %7.1f TFLOP/s\n", stage.c_str(),
                    static_cast<long long>(p.queries()), static_cast<long long>(p.keys()), median,
                    rate);
        std::fflush(stdout);
        records_.push_back({{"stage", stage},
                            {"queries", p.queries()},
                            {"keys", p.keys()},
                            {"median_us", median},
                            {"flops", flops},
                            {"tflops", rate},
                            {"samples_us", microseconds}});
    }

    nlohmann::ordered_json record() const {
        return {{"device", backend_->device()},
                {"sizes",
                 {{"query_heads", kHeads},
                  {"kv_heads", kGroups},
                  {"head_dim", kDim},
                  {"index_dim", kDim},
                  {"block_size", kBlock},
                  {"top_k", kTopK}}},
                {"element", "bf16"},
                {"stages", records_}};
    }

private:
    std::unique_ptr<Backend> backend_;
    Tensor<char, 1> flush_;
    nlohmann::ordered_json records_ = nlohmann::ordered_json::array();
};

void select_blocks(Bench& bench, int64_t tokens, int64_t blocks, int64_t top_k) {
    Problem p = square_problem(0, 1, 1, kDim, kDim, kBlock);
    p.cu_seqlens_q = {0, tokens};
    p.cu_seqlens_k = {0, blocks * kBlock};
    p.query_positions.assign(static_cast<size_t>(tokens), blocks * kBlock - 1);
    Backend& backend = bench.backend();
    Tensor<float, 3> host({tokens, 1, blocks});
#pragma omp parallel for
    for (int64_t i = 0; i < host.size(); ++i)
        host.data()[i] = static_cast<float>(mix(static_cast<uint64_t>(i)) >> 40);
    const Tensor<float, 3> scores = backend.upload(host.view());
    Tensor<int32_t, 3> ids = backend.make<int32_t, 3>({tokens, 1, top_k});
    bench.time("select_blocks B " + std::to_string(blocks) + " k " + std::to_string(top_k), p, 0,
               15, [&] { backend.select_blocks(p, {.top_k = top_k}, scores, ids); });
}

void prefill(Bench& bench, int64_t queries, int64_t keys, int samples, bool mass) {
    Backend& backend = bench.backend();
    Problem p = square_problem(keys, kHeads, kGroups, kDim, kDim, kBlock);
    p.cu_seqlens_q = {0, queries};
    const auto index_q = random_values<3>(backend, {queries, kGroups, kDim}, 1);
    const auto index_k = random_values<2>(backend, {keys, kDim}, 2);
    Tensor<int32_t, 3> selected = backend.make<int32_t, 3>({queries, kGroups, kTopK});
    bench.time("index_select", p, analysis::index_scores_flops(p), samples, [&] {
        backend.index_select(p, {.top_k = kTopK}, {index_q, index_k}, selected);
    });
    const auto q = random_values<3>(backend, {queries, kHeads, kDim}, 3);
    const auto k = random_values<3>(backend, {keys, kGroups, kDim}, 4);
    const auto v = random_values<3>(backend, {keys, kGroups, kDim}, 5);
    Tensor<bf16, 3> out = backend.make<bf16, 3>(q.shape());
    Tensor<float, 2> lse = backend.make<float, 2>({queries, kHeads});
    for (const bool structured : {false, true}) {
        const Tensor<int32_t, 3> host = make_ids(p, structured);
        const Tensor<int32_t, 3> ids = backend.upload(host.view());
        for (LoopOrder order : {LoopOrder::automatic, LoopOrder::q_outer, LoopOrder::kv_outer})
            bench.time(std::string("sparse_attention ") + (structured ? "structured " : "random ") +
                           to_string(order),
                       p, analysis::sparse_attention_flops(p, host), samples, [&] {
                           backend.sparse_attention(p, {q, k, v}, ids, {out, lse}, order);
                       });
    }
    if (!mass) return;
    // Mass in pieces, as msa-analyze takes it.
    constexpr int64_t kPiece = 8192;
    Tensor<float, 3> piece = backend.make<float, 3>({kPiece, kGroups, p.blocks()});
    bench.time("block_mass", p, analysis::block_mass_flops(p), 3, [&] {
        for (int64_t begin = 0; begin < queries; begin += kPiece) {
            const int64_t count = std::min(kPiece, queries - begin);
            backend.block_mass(p.with_queries({begin, begin + count}), q.view().slice(begin, count),
                               k, {piece.view().slice(0, count), {}});
        }
    });
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: bench_cuda OUT.json [most tokens]\n");
        return 2;
    }
    try {
        register_cuda_backend();
        Bench bench;
        const int64_t most = argc > 2 ? std::stoll(argv[2]) : int64_t{1} << 17;
        std::printf("%s\n", bench.backend().device().c_str());
        constexpr int64_t kThousand = 1024;
        select_blocks(bench, 128 * kThousand, 1024, 16);
        select_blocks(bench, 128 * kThousand, 2048, 32);
        select_blocks(bench, 512 * kThousand, 4096, 16);
        select_blocks(bench, 512 * kThousand, 8192, 32);
        for (int64_t tokens : {8 * kThousand, 32 * kThousand, 128 * kThousand})
            if (tokens <= most) prefill(bench, tokens, tokens, 9, true);
        prefill(bench, 16 * kThousand, 128 * kThousand, 9, false);
        prefill(bench, 256, 128 * kThousand, 15, false);
        for (int64_t queries : {1, 8}) prefill(bench, queries, 1024 * kThousand, 25, false);
        std::ofstream(argv[1]) << bench.record().dump(1) << '\n';
    } catch (const std::exception& error) {
        std::fprintf(stderr, "bench_cuda: %s\n", error.what());
        return 1;
    }
    return 0;
}
