// SPDX-License-Identifier: MIT
#include "experiments/compare/summary.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <ostream>
#include <sstream>
#include <stdexcept>

#include "analysis/overlap.h"
#include "core/error.h"
#include "core/select/token_selector.h"
#include "experiments/compare/intervals.h"
#include "experiments/compare/rows.h"
#include "experiments/driver/run_record.h"

namespace msa::experiments::compare {
namespace {

using nlohmann::ordered_json;

ordered_json number(double value) {
    return !std::isfinite(value) ? ordered_json() : ordered_json(value);
}

/// Mean overlap of the blocks that two layers choose for the same queries and groups.
ordered_json layer_overlap(const io::ResultsReader& results) {
    ordered_json all = ordered_json::array();
    for (const std::string& key : results.list("/metrics")) {
        const std::string group = "/select/" + key;
        if (!results.has(group) || results.list(group).size() < 2) continue;
        ordered_json matrix = ordered_json::array(), names = ordered_json::array();
        std::vector<Tensor<int32_t, 3>> ids;
        for (const std::string& layer : results.list(group)) {
            ids.push_back(results.read<int32_t, 3>(group + "/" + layer + "/ids"));
            names.push_back(std::stoll(layer));
        }
        const bool alike = std::all_of(ids.begin(), ids.end(), [&](const auto& of) {
            return of.extent(1) == ids.front().extent(1);
        });
        if (!alike) continue;
        for (const Tensor<int32_t, 3>& a : ids) {
            ordered_json line = ordered_json::array();
            for (const Tensor<int32_t, 3>& b : ids)
                line.push_back(number(analysis::mean_overlap(a.view(), b.view())));
            matrix.push_back(line);
        }
        all.push_back({{"config", key}, {"layers", names}, {"overlap", matrix}});
    }
    return all;
}

/// Rows of one layer, one entry each.
void add_rows(const io::ResultsReader& results, const std::vector<Row>& rows, ordered_json& to) {
    if (rows.empty()) return;
    const std::vector<Sure> sure = measure_sureness(results, rows);
    const measure::DrawnBlocks from(results, "/query_blocks/" + rows.front().layer);
    for (size_t n = 0; n < rows.size(); ++n) {
        const Row& row = rows[n];
        ordered_json entry{
            {"layer", std::stoll(row.layer)}, {"selector", row.selector}, {"setting", row.setting}};
        for (const char* name : {"family", "kind"}) entry[name] = results.text(row.group(), name);
        for (const char* name : kRowSizes) entry[name] = row.size(results, name);
        for (const Measure& measure : kMeasures)
            entry[measure.name] = number(row.value(results, measure.name));
        entry["intervals"] = {{"mass_kept", measure::interval_json(sure[n].mass, from)},
                              {"group_output_error", measure::interval_json(sure[n].error, from)}};
        entry["behind"] = {{"selector", sure[n].best},
                           {"value", number(sure[n].behind.value)},
                           {"low", number(sure[n].behind.low)},
                           {"high", number(sure[n].behind.high)}};
        to.push_back(entry);
    }
}

/// Adds what a unit took to its layer, whose units are done by one worker or by many.
void add_timing(const ordered_json& unit, ordered_json& layer) {
    const std::string device = unit.value("device", ""), known = layer["device"];
    if (known.find(device) == std::string::npos)
        layer["device"] = known + (known.empty() ? "" : "; ") + device;
    const ordered_json timing = unit.value("timing", ordered_json::object());
    for (const auto& [selector, seconds] : timing.items())
        for (const auto& [name, value] : seconds.items()) {
            ordered_json& sum = layer["selectors"][selector][name];
            sum = (sum.is_null() ? 0.0 : sum.get<double>()) + value.get<double>();
            layer["sum_seconds"] = layer["sum_seconds"].get<double>() + value.get<double>();
        }
}

}  // namespace

std::string compare_definitions() {
    ordered_json definitions;
    for (const Measure& measure : kMeasures) definitions[measure.name] = measure.definition();
    for (const char* name : {"dead_groups", "layer_overlap"})
        definitions[name] = analysis::metric(name).definition;
    definitions["tokens_allowed"] =
        "tokens of as many blocks as the budget buys, forced blocks outside the budget included; "
        "a policy whose tokens_read is larger reads more than its budget";
    definitions["rows_counted"] =
        "queries in the averages: those that see more keys than the largest budget, the same for "
        "every selector and budget; averages go over queries, then over groups";
    definitions["intervals"] =
        std::string(measure::kIntervalsWords) + "; every config sees the same draws";
    definitions["behind"] =
        "mass_kept of the selector that keeps most at this setting, oracles and selectors that "
        "read "
        "more than their budget apart, less the row's: the two are not distinguishable where the "
        "interval holds 0";
    return definitions.dump();
}

std::string compare_summary(const io::ResultsReader& results) {
    ordered_json checks = ordered_json::array(), rows = ordered_json::array();
    for (const std::string& layer : results.list("/checks")) {
        ordered_json entry{{"layer", std::stoll(layer)}};
        for (const char* name : {"rows", "rows_with_all_blocks", "rows_undefined"})
            entry[name] = static_cast<int64_t>(results.number("/checks/" + layer, name));
        for (const char* name : {"largest_difference_from_dense", "largest_mass_bound"})
            entry[name] = number(results.number("/checks/" + layer, name));
        checks.push_back(entry);
    }
    ordered_json notes = ordered_json::object();
    const std::vector<Row> all = read_rows(results);
    for (const std::string& layer : layers_of(all)) {
        const std::vector<Row> some = of_layer(all, layer);
        add_rows(results, some, rows);
        notes[layer] = read_notes(results, some);
    }
    ordered_json summary = begin_summary("msa-compare-summary", results.run());
    summary.update(ordered_json{{"checks", checks},
                                {"rows", rows},
                                {"notes", notes},
                                {"dropped_sinks", rows_without_sinks(results)},
                                {"layer_overlap", layer_overlap(results)}});
    return summary.dump(2) + "\n";
}

std::string compare_csv(const io::ResultsReader& results) {
    std::ostringstream csv;
    csv << std::setprecision(9)
        << "layer,selector,setting,budget,block_size,metric,axis,index,value\n";
    for (const Row& row : read_rows(results)) {
        std::ostringstream head;
        head << row.layer << ',' << row.selector << ",\"" << row.setting << "\"," << row.budget
             << ',' << row.size(results, "block_size") << ',';
        for (const std::string& metric : results.list(row.group())) {
            const std::string dataset = row.group() + "/" + metric;
            const Tensor<double, 1> values = results.read<double, 1>(dataset);
            for (int64_t n = 0; n < values.size(); ++n) {
                csv << head.str() << metric << ',' << results.text(dataset, "axes") << ',' << n
                    << ',';
                if (!std::isnan(values(n))) csv << values(n);
                csv << '\n';
            }
        }
        for (const Measure& measure : kMeasures)
            if (!results.has(row.group() + "/" + measure.name))
                csv << head.str() << measure.name << ",,," << row.value(results, measure.name)
                    << '\n';
    }
    return csv.str();
}

std::string compare_timing(const std::filesystem::path& run_json) {
    std::ifstream stream(run_json);
    const ordered_json run = ordered_json::parse(stream, nullptr, false);
    ordered_json layers = ordered_json::array();
    if (run.is_object())
        for (const ordered_json& unit : run.value("units", ordered_json::array())) {
            const std::string name = unit.value("unit", "");  // "layer 3, queries 0:512"
            const int64_t layer = std::stoll(name.substr(name.find(' ') + 1));
            if (layers.empty() || layers.back()["layer"] != layer)
                layers.push_back({{"layer", layer},
                                  {"device", ""},
                                  {"selectors", ordered_json::object()},
                                  {"sum_seconds", 0.0}});
            add_timing(unit, layers.back());
        }
    return ordered_json{{"format", "msa-compare-timing"}, {"layers", layers}}.dump(2) + "\n";
}

void check_compare_order(const io::ResultsReader& results) {
    for (const Row& row : read_rows(results)) {
        if (find_token_selector(row.selector)) continue;  // bounded by the blocks it touches
        const bool uneven = row.size(results, "uneven") != 0;
        const double rounding = results.number("/checks/" + row.layer, "largest_mass_bound");
        const double kept = row.value(results, "mass_kept");
        const double oracle = row.value(results, "oracle_mass");
        if ((!uneven && kept > oracle + rounding) || kept > 1 + rounding)
            throw std::logic_error(concat("layer ", row.layer, ": ", row.selector, " at ",
                                          row.setting, " keeps ", kept, " of the mass, the oracle ",
                                          oracle));
    }
}

}  // namespace msa::experiments::compare
