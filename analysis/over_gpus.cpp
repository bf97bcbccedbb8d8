// SPDX-License-Identifier: MIT
#include "analysis/over_gpus.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "analysis/bytes.h"
#include "core/error.h"
#include "core/parallel/plan.h"

namespace msa::analysis {
namespace {

constexpr double kCandidateBytes = 8;  // score and block
constexpr double kPartSumBytes = 8;    // largest logit and sum of a head
constexpr size_t kAutomatic = 4;       // among chunk_pipelines

/// How P GPUs are connected.
struct Ways {
    double gpus, hosts, of_host;
    Hardware::Link link, network;  // where there is one host, the network carries nothing

    Ways(int count, const Hardware& on) : gpus(count), hosts(1), of_host(count), link{1, 0} {
        require(count >= 1, "GPUs are ", count, ", must be at least 1");
        if (count == 1) return;
        link = on.links();
        if (count <= on.chips_of_host) return;
        require(count % on.chips_of_host == 0, "GPUs are ", count, ", must be at most the ",
                on.chips_of_host, " of a host or a multiple of them");
        network = on.networks();
        of_host = real(on.chips_of_host);
        hosts = gpus / of_host;
    }
    double latency() const {
        return gpus == 1 ? 0 : hosts == 1 ? link.seconds : link.seconds + network.seconds;
    }
    /// `all` bytes, of which each GPU has its share, come to all.
    double gather_seconds(double all) const {
        const double by_network = all * (1 - 1 / hosts) / of_host;
        const double by_link = all * (1 - 1 / gpus) - by_network;
        return std::max(hosts == 1 ? 0 : by_network / network.bytes_per_second,
                        by_link / link.bytes_per_second);
    }
    /// Every GPU sends `bytes` to every other one.
    double exchange_seconds(double bytes) const {
        if (gpus == 1) return 0;
        const double far = hosts == 1 ? 0 : (gpus - of_host) * bytes / network.bytes_per_second;
        return latency() + std::max(far, (of_host - 1) * bytes / link.bytes_per_second +
                                             (of_host - 2) * link.seconds);
    }
};

/// When the chunks of ZigZag arrive within one host, where every rank fetches those of others in
/// the order of the sequence: readers of one owner share its link evenly.
class GatherInHost {
public:
    GatherInHost(int ranks, double chunk_seconds) : arrival_(static_cast<size_t>(ranks)) {
        std::vector<double> left(arrival_.size(), 1);  // of the chunk that a rank is fetching
        for (double now = 0;;) {
            std::vector<double> readers(arrival_.size());
            for (int rank = 0; rank < ranks; ++rank)
                if (fetches(rank)) ++readers[owner(rank)];
            double step = 0;
            for (int rank = 0; rank < ranks; ++rank) {
                if (!fetches(rank)) continue;
                const double ends = left[static_cast<size_t>(rank)] * readers[owner(rank)];
                step = step == 0 ? ends : std::min(step, ends);
            }
            if (step == 0) return;
            now += step * chunk_seconds;
            std::vector<int> done;
            for (int rank = 0; rank < ranks; ++rank) {
                if (!fetches(rank)) continue;
                double& rest = left[static_cast<size_t>(rank)];
                rest -= step / readers[owner(rank)];
                if (rest < 1e-9) done.push_back(rank);
            }
            for (int rank : done) {
                arrival_[static_cast<size_t>(rank)].push_back(now);
                left[static_cast<size_t>(rank)] = 1;
            }
        }
    }
    /// Until `others` of the other ranks' chunks are there.
    double seconds(int rank, int64_t others) const {
        return others == 0 ? 0
                           : arrival_[static_cast<size_t>(rank)][static_cast<size_t>(others) - 1];
    }
    double seconds() const {
        double last = 0;
        for (const std::vector<double>& rank : arrival_)
            last = std::max(last, rank.empty() ? 0 : rank.back());
        return last;
    }

private:
    bool fetches(int rank) const {
        return arrival_[static_cast<size_t>(rank)].size() + 2 < 2 * arrival_.size();
    }
    /// The rank that owns the chunk which `rank` fetches next. Rank c owns chunks c and 2 P - 1 -
    /// c.
    size_t owner(int rank) const {
        const size_t count = arrival_.size(), own = static_cast<size_t>(rank);
        size_t chunk = arrival_[own].size();
        chunk += chunk >= own;
        chunk += chunk >= 2 * count - 1 - own;
        return std::min(chunk, 2 * count - 1 - chunk);
    }
    std::vector<std::vector<double>> arrival_;  // [rank][others' chunk]
};

Problem problem_of(const LayerSizes& s) {
    return square_problem(s.tokens, s.query_heads, s.kv_heads, s.head_dim, s.index_dim,
                          s.block_size);
}

/// The same layer over the first `tokens`.
LayerSizes prefix_of(LayerSizes s, int64_t tokens) {
    s.tokens = tokens;
    s.top_k = std::min(s.top_k, tokens / s.block_size);
    if (s.given_union_blocks)
        s.given_union_blocks =
            std::clamp(*s.given_union_blocks, real(s.top_k), real(s.top_k * s.tile_queries()));
    return s;
}

double chunk_seconds(const LayerSizes& s, const parallel::Chunk& chunk, const Hardware& on) {
    return chunk_pipelines(prefix_of(s, chunk.problem.keys()), chunk.problem.queries())[kAutomatic]
        .seconds(on);
}

}  // namespace

double PrefillOverGpus::seconds() const {
    double last = 0;
    for (const RankTime& rank : ranks) last = std::max(last, rank.end);
    return last;
}

double PrefillOverGpus::imbalance() const {
    double most = 0, sum = 0;
    for (const RankTime& rank : ranks) {
        most = std::max(most, rank.compute());
        sum += rank.compute();
    }
    return most * real(std::ssize(ranks)) / sum - 1;
}

double PrefillOverGpus::exposed_seconds() const {
    double most = 0;
    for (const RankTime& rank : ranks) most = std::max(most, rank.waited());
    return most;
}

PrefillOverGpus prefill_over_gpus(const LayerSizes& s, int gpus, const Hardware& on) {
    s.validate();
    const Ways ways(gpus, on);
    const Problem p = problem_of(s);
    const int64_t unit = parallel::ZigZag::unit(p), chunks = 2 * int64_t{gpus};
    require(s.tokens >= chunks * unit, "context is ", s.tokens, ", must hold ", chunks,
            " chunks of at least ", unit, " tokens, two for each of ", gpus, " GPUs");
    const double row = real(element_bytes(s.index_element) * s.index_dim +
                            2 * element_bytes(s.element) * s.kv_heads * s.head_dim);
    PrefillOverGpus over;
    over.one_seconds = prefill_pipelines(s)[kAutomatic].seconds(on);
    over.gather_bytes = row * real(s.tokens) * (1 - 1 / ways.gpus);
    over.gather_seconds = ways.gather_seconds(row * real(s.tokens));
    if (gpus == 1) {  // all in one call
        over.ranks = {{over.one_seconds, 0, over.one_seconds}};
        return over;
    }
    std::optional<GatherInHost> in_host;
    if (ways.hosts == 1) {
        in_host.emplace(gpus, row * real(s.tokens) / real(chunks) / ways.link.bytes_per_second);
        over.gather_seconds = in_host->seconds();
    }
    const double chunk_gather = over.gather_seconds / real(chunks - 2);
    const parallel::ZigZag plan(p, gpus);
    for (int rank = 0; rank < gpus; ++rank) {
        const auto [early, late] = plan.of(rank);
        // When `others` of the chunks that are others' are there.
        const auto arrival = [&](int64_t others) {
            if (others == 0) return 0.0;
            return ways.latency() +
                   (in_host ? in_host->seconds(rank, others) : real(others) * chunk_gather);
        };
        RankTime time{chunk_seconds(s, *early, on), chunk_seconds(s, *late, on), 0};
        const double early_end = arrival(rank) + time.early;
        time.end = std::max(early_end, arrival(chunks - 2 - rank)) + time.late;
        over.ranks.push_back(time);
    }
    return over;
}

DecodeOverGpus decode_over_gpus(const LayerSizes& s, int gpus, const Hardware& on) {
    s.validate();
    const Ways ways(gpus, on);
    LayerSizes part = s;
    part.tokens = ceil_div(ceil_div(s.tokens, s.block_size), int64_t{gpus}) * s.block_size;
    if (gpus == 1) part.tokens = s.tokens;
    require(part.tokens / s.block_size >= s.top_k, "context is ", s.tokens,
            ", must hold the k = ", s.top_k, " blocks of ", s.block_size, " tokens for each of ",
            gpus, " GPUs");
    const auto stages = [&](const LayerSizes& sizes) {
        return decode_pipelines(sizes)[kAutomatic].stages;
    };
    const std::vector<Stage> all = stages(s);
    MSA_CHECK(all.size() == 2);
    DecodeOverGpus over;
    over.step_seconds = on.step_seconds;
    over.one_seconds = on.step_seconds + all[0].seconds(on) + all[1].seconds(on);
    over.select_seconds = stages(part)[0].seconds(on);
    over.attend_worst_seconds = all[1].seconds(on);
    over.attend_seconds = over.attend_worst_seconds / ways.gpus;
    const double candidates = kCandidateBytes * real(s.kv_heads * s.top_k);
    const double parts = real(s.query_heads) * (kScoreBytes * real(s.head_dim) + kPartSumBytes);
    over.exchange_bytes = (ways.gpus - 1) * (candidates + parts);
    over.exchange_seconds = ways.exchange_seconds(candidates) + ways.exchange_seconds(parts);
    return over;
}

}  // namespace msa::analysis
