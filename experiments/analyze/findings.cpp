// SPDX-License-Identifier: MIT
#include "experiments/analyze/findings.h"

#include <stdexcept>

#include "core/error.h"
#include "core/select/selector.h"
#include "experiments/analyze/options.h"
#include "experiments/driver/full_layers.h"
#include "experiments/driver/metrics.h"
#include "experiments/driver/run.h"

namespace msa::experiments::analyze {
namespace {

std::string metrics_group(const std::string& selector, int64_t layer) {
    return concat("/metrics/", selector, "/", layer);
}

/// The learned indexers among the selectors, beside those that nobody trains.
std::vector<Learned> learned(const std::vector<Row>& rows) {
    std::vector<Learned> all;
    for (const Row& row : rows) {
        if (make_selector(name_of_label(row.selector))->family() != Family::index_branch) continue;
        const auto number = [](const Row& of, const char* metric) { return of.kept[metric].value; };
        Learned& of = all.emplace_back(Learned{row.layer, row.selector, number(row, "block_recall"),
                                               number(row, "mass_kept")});
        for (const Row& other : rows) {
            if (other.layer != row.layer) continue;
            const std::string_view name = name_of_label(other.selector);
            if (name == "random") of.random_recall = number(other, "block_recall");
            if (name == "window" || name == "mean-key")
                of.rivals.push_back({other.selector, number(other, "mass_kept")});
        }
    }
    return all;
}

}  // namespace

Findings make_findings(const io::ResultsReader& results) {
    Findings findings;
    bool drawn = false;
    for (const std::string& layer : results.list("/layers")) {
        const measure::LayerNumbers of(results, layer);
        if (findings.intervals.empty() || (!drawn && of.drawn().can_draw()))
            findings.intervals = of.drawn().text(results.run().seed);
        drawn |= of.drawn().can_draw();
        for (const std::string& selector : results.list("/metrics")) {
            const std::string group = "/metrics/" + selector + "/" + layer;
            if (selector == "dense" || !results.has(group)) continue;
            const auto count = [&](const char* name) {
                return static_cast<int64_t>(results.number(group, name));
            };
            findings.rows.push_back(
                {std::stoll(layer), selector, measure::NumbersByMetric(of, selector),
                 recorded_window(results, "/layers/" + layer), count("rows_counted"),
                 count("rows_trivial"), count("dead_heads"), of.drawn().blocks(),
                 of.drawn().sequences()});
        }
    }
    findings.weak = find_weak(learned(findings.rows));
    return findings;
}

std::string metrics_csv(const io::ResultsReader& results) {
    MetricsCsv lines({"layer", "selector"});
    for (const std::string& layer : results.list("/layers"))
        for (const std::string& selector : results.list("/metrics")) {
            const std::string group = "/metrics/" + selector + "/" + layer;
            if (results.has(group)) lines.add(results, group, {layer, selector});
        }
    return lines.text();
}

void check_mass_bounds(const io::ResultsReader& results, const Findings& findings) {
    const bool by_mass = !recorded_options<AnalyzeOptions>(results.run().options).oracle_by_logit;
    for (const Row& row : findings.rows) {
        const std::string group = metrics_group(row.selector, row.layer);
        const double kept = results.number(group, "mass_kept");
        const double oracle = results.number(group, "oracle_mass");
        // Both are means of sums over the same float masses; the oracle's blocks are the largest.
        const double rounding = results.number(concat("/checks/", row.layer), "largest_mass_bound");
        if ((by_mass && kept > oracle + rounding) || kept > 1 + rounding)
            throw std::logic_error(concat("layer ", row.layer, ": ", row.selector, " keeps ", kept,
                                          " of the mass, the oracle ", oracle));
    }
}

}  // namespace msa::experiments::analyze
