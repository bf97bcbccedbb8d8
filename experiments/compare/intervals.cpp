// SPDX-License-Identifier: MIT
#include "experiments/compare/intervals.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "experiments/measure/sums.h"

namespace msa::experiments::compare {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

/// Mass kept and output error over the draws.
struct Draws {
    std::vector<double> mass, error;
};

Draws draw(const measure::DrawnBlocks& blocks, const io::ResultsReader& results, const Row& row) {
    const std::string group = measure::sums_group(row.layer, row.key);
    Draws of{{}, measure::error_draws(results, blocks, group + "/group_output_error")};
    if (results.text(row.group(), "kind") == "tokens") {
        const auto sums = results.read<double, 2>(group + "/mass/sums");
        const auto counts = results.read<int64_t, 2>(group + "/mass/counts");
        of.mass = blocks.means(sums.view(), counts.view(), 0, sums.extent(1));
    } else {
        of.mass = measure::recall_draws(results, blocks, group + "/recall", "mass_kept");
    }
    return of;
}

std::vector<Draws> draw_all(const io::ResultsReader& results, const std::vector<Row>& rows) {
    std::vector<Draws> all(rows.size());
    const measure::DrawnBlocks blocks(results, "/query_blocks/" + rows.front().layer);
    if (blocks.can_draw())
        for (size_t n = 0; n < all.size(); ++n) all[n] = draw(blocks, results, rows[n]);
    return all;
}

/// By setting, the candidate of the highest mass kept.
std::map<std::string, size_t> best_rows(const io::ResultsReader& results,
                                        const std::vector<Row>& rows) {
    std::map<std::string, size_t> best;
    for (size_t n = 0; n < rows.size(); ++n) {
        if (!rows[n].is_candidate(results)) continue;
        const auto [at, is_new] = best.try_emplace(rows[n].compared_setting(), n);
        if (!is_new &&
            rows[n].value(results, "mass_kept") > rows[at->second].value(results, "mass_kept"))
            at->second = n;
    }
    return best;
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
                .error = analysis::with_interval(rows[n].value(results, "group_output_error"),
                                                 draws[n].error),
                .best = "",
                .behind = {kNone, kNone, kNone},
                .is_candidate = rows[n].is_candidate(results)};
        if (const auto at = best.find(rows[n].compared_setting()); at != best.end()) {
            of.best = rows[at->second].selector;
            of.behind = analysis::with_interval(
                rows[at->second].value(results, "mass_kept") - mass,
                measure::differences(draws[at->second].mass, draws[n].mass));
        }
        sure.push_back(of);
    }
    return sure;
}

}  // namespace msa::experiments::compare
