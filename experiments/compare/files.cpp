// SPDX-License-Identifier: MIT
// The files beside the report of msa-compare, and the check of its order.
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "core/error.h"
#include "experiments/compare/rows.h"
#include "experiments/driver/metrics.h"

namespace msa::experiments::compare {
namespace {

using nlohmann::ordered_json;

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

std::string compare_csv(const io::ResultsReader& results, const std::vector<LayerRows>& layers) {
    MetricsCsv lines({"layer", "selector", "setting", "budget", "block_size"});
    for (const LayerRows& of : layers)
        for (const Row& row : of.rows) {
            const std::vector<std::string> names{row.layer, row.selector, row.setting,
                                                 std::to_string(row.budget()),
                                                 std::to_string(row.sizes.at("block_size"))};
            lines.add(results, row.group(), names);
            for (const char* measure : kMeasures)
                if (!results.has(row.group() + "/" + measure))
                    lines.add(names, measure, row.measures.at(measure));
        }
    return lines.text();
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

void check_compare_order(const io::ResultsReader& results, const std::vector<LayerRows>& layers) {
    for (const LayerRows& of : layers) {
        const double rounding = results.number("/checks/" + of.layer, "largest_mass_bound");
        for (const Row& row : of.rows) {
            if (row.kind == "tokens") continue;  // bounded by the blocks it touches
            const bool uneven = results.number(row.group(), "uneven") != 0;
            const double kept = row.mass_kept(), oracle = row.measures.at("oracle_mass");
            if ((!uneven && kept > oracle + rounding) || kept > 1 + rounding)
                throw std::logic_error(concat("layer ", row.layer, ": ", row.selector, " at ",
                                              row.setting, " keeps ", kept,
                                              " of the mass, the oracle ", oracle));
        }
    }
}

}  // namespace msa::experiments::compare
