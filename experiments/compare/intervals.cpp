// SPDX-License-Identifier: MIT
#include "experiments/compare/intervals.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "experiments/driver/estimate.h"

namespace msa::experiments::compare {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// What a layer's blocks of queries are.
struct Blocks : StoredBlocks {
    Blocks(const io::ResultsReader& results, const std::string& layer)
        : StoredBlocks(drawn_from(results, layer)) {
        if (count() > 0) norm = results.read<double, 2>("/query_blocks/" + layer + "/norm");
    }
    Tensor<double, 2> norm;  // [M, Hkv]
};

/// Mass kept and output error over the draws.
struct Draws {
    std::vector<double> mass, error;
};

/// One draw; groups whose dense output is 0 have no error.
void add_draw(const Blocks& blocks, View<const double, 3> kept, View<const int32_t, 1> times,
              Draws& draws) {
    double errors = 0;
    int64_t living = 0;
    for (int64_t r = 0; r < kept.extent(1); ++r) {
        double off = 0, all = 0;
        for (int64_t m = 0; m < kept.extent(0); ++m) {
            if (times(m) == 0) continue;
            off += times(m) * kept(m, r, 1);
            all += times(m) * blocks.norm(m, r);
        }
        if (all == 0) continue;
        errors += std::sqrt(off / all);
        ++living;
    }
    draws.mass.push_back(average_of_draw(blocks, kept, times).front());
    draws.error.push_back(living == 0 ? kNone : errors / static_cast<double>(living));
}

std::vector<Draws> draw_all(const io::ResultsReader& results, const std::vector<Row>& rows) {
    std::vector<Draws> all(rows.size());
    const Blocks blocks(results, rows.front().layer);
    if (blocks.count() < 2) return all;
    const Tensor<int32_t, 2> times =
        analysis::bootstrap_draws(blocks.sequences, kDraws, results.run().seed);
    std::vector<Tensor<double, 3>> kept;
    for (const Row& row : rows)
        kept.push_back(results.read<double, 3>("/blocks/" + row.key + "/" + row.layer));
#pragma omp parallel for
    for (size_t n = 0; n < all.size(); ++n)
        for (int64_t draw = 0; draw < kDraws; ++draw)
            add_draw(blocks, std::as_const(kept[n]).view(), std::as_const(times).view()[draw],
                     all[n]);
    return all;
}

/// By race, the row of the highest mass kept of those that compete.
std::map<std::string, size_t> best_rows(const io::ResultsReader& results,
                                        const std::vector<Row>& rows) {
    std::map<std::string, size_t> best;
    for (size_t n = 0; n < rows.size(); ++n) {
        if (!rows[n].competes(results)) continue;
        const auto [at, is_new] = best.try_emplace(rows[n].race(), n);
        if (!is_new &&
            rows[n].value(results, "mass_kept") > rows[at->second].value(results, "mass_kept"))
            at->second = n;
    }
    return best;
}

std::vector<double> differences(const std::vector<double>& of, const std::vector<double>& from) {
    std::vector<double> paired;
    for (size_t n = 0; n < of.size(); ++n) paired.push_back(of[n] - from[n]);
    return paired;
}

}  // namespace

std::vector<Sure> measure_sureness(const io::ResultsReader& results, const std::vector<Row>& rows) {
    std::vector<Sure> sure;
    if (rows.empty()) return sure;
    const std::vector<Draws> draws = draw_all(results, rows);
    const std::map<std::string, size_t> best = best_rows(results, rows);
    for (size_t n = 0; n < rows.size(); ++n) {
        const double mass = rows[n].value(results, "mass_kept");
        Sure of{.mass = analysis::with_interval(mass, draws[n].mass),
                .error =
                    analysis::with_interval(rows[n].value(results, "output_error"), draws[n].error),
                .best = "",
                .behind = {kNone, kNone, kNone},
                .competes = rows[n].competes(results)};
        if (const auto at = best.find(rows[n].race()); at != best.end()) {
            of.best = rows[at->second].selector;
            of.behind = analysis::with_interval(rows[at->second].value(results, "mass_kept") - mass,
                                                differences(draws[at->second].mass, draws[n].mass));
        }
        sure.push_back(of);
    }
    return sure;
}

StoredBlocks drawn_from(const io::ResultsReader& results, const std::string& layer) {
    return read_query_blocks(results, "/query_blocks/" + layer);
}

}  // namespace msa::experiments::compare
