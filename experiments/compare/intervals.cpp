// SPDX-License-Identifier: MIT
#include "experiments/compare/intervals.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "experiments/measure/drawn.h"

namespace msa::experiments::compare {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

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
    const measure::LayerNumbers of_layer(results, rows.front().layer);
    std::vector<std::vector<double>> masses;  // of each row, the draws
    for (const Row& row : rows)
        masses.push_back((results.text(row.group(), "kind") == "tokens"
                              ? of_layer.mean(row.key + "/mass")
                              : of_layer.recall(row.key + "/recall", "mass_kept"))
                             .draws);
    const std::map<std::string, size_t> best = best_rows(results, rows);
    for (size_t n = 0; n < rows.size(); ++n) {
        const double mass = rows[n].value(results, "mass_kept");
        Sure of{.mass = analysis::with_interval(mass, masses[n]),
                .error = analysis::with_interval(
                    rows[n].value(results, "group_output_error"),
                    of_layer.error(rows[n].key + "/group_output_error").draws),
                .best = "",
                .behind = {kNone, kNone, kNone},
                .is_candidate = rows[n].is_candidate(results)};
        if (const auto at = best.find(rows[n].compared_setting()); at != best.end()) {
            of.best = rows[at->second].selector;
            of.behind =
                analysis::with_interval(rows[at->second].value(results, "mass_kept") - mass,
                                        measure::differences(masses[at->second], masses[n]));
        }
        sure.push_back(of);
    }
    return sure;
}

}  // namespace msa::experiments::compare
