// SPDX-License-Identifier: MIT
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <ostream>
#include <stdexcept>

#include "analysis/metrics.h"
#include "analysis/overlap.h"
#include "core/error.h"
#include "experiments/compare/options.h"
#include "experiments/compare/rows.h"
#include "experiments/driver/estimate.h"
#include "experiments/driver/metrics.h"
#include "experiments/driver/rows.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/sink_note.h"
#include "experiments/driver/table.h"
#include "experiments/measure/drawn.h"
#include "experiments/measure/ties.h"

namespace msa::experiments::compare {
namespace {

using nlohmann::ordered_json;
using Of = const Row&;

/// One config a row: in files all sizes and measures, on the page what it read, what it kept and
/// how sure that is, and what its scores cost.
Rows rows_of(const std::vector<Row>& rows, bool with_setting) {
    const auto size = [](const char* name) {
        return [name](Of row) { return row.sizes.at(name); };
    };
    const auto measure = [](const char* name) {
        return [name](Of row) { return row.measures.at(name); };
    };
    const auto on_page = [](const char* name, const char* heading, Form form = {}) {
        return Column{"", heading, form, analysis::metric(name).definition};
    };
    std::vector<ColumnOf<Row>> columns{
        {{"layer"}, [](Of row) { return int64_t{std::stoll(row.layer)}; }},
        {{"selector", "selector"}, &Row::selector},
        {{"setting"}, &Row::setting},
        {{"family"}, &Row::family},
        {{"kind"}, &Row::kind},
        {{"", "budget"}, size("budget")}};
    for (const char* name : kSizes) columns.push_back({{name}, size(name)});
    for (const char* name : kMeasures) columns.push_back({{name}, measure(name)});
    if (with_setting) columns.push_back({{"", "setting"}, &Row::variant});
    const std::vector<ColumnOf<Row>> page{
        {on_page("blocks_kept", "blocks\nkept", {.decimals = 2}), measure("blocks_kept")},
        {on_page("tokens_read", "tokens\nread"), &Row::tokens_text},
        {on_page("mass_kept", "mass", {.shown = Shown::interval}), &Row::mass},
        {{"", "beside\nthe best"}, &Row::beside_the_best},
        {on_page("group_output_error", "error"), measure("group_output_error")},
        {on_page("index_flops", "index\nkFLOP", {.decimals = 1, .per = 1000}),
         measure("index_flops")},
        {on_page("index_bytes", "index\nKiB", {.decimals = 1, .per = 1024}),
         measure("index_bytes")}};
    columns.insert(columns.end(), page.begin(), page.end());
    return {columns, rows};
}

/// Every selector beside the windows of its budget and of its FLOPs.
void print_windows(const std::vector<Row>& rows, std::ostream& out) {
    const auto own = [](const char* measure) {
        return [measure](Of row) { return row.measures.at(measure); };
    };
    const auto window = [&](const char* measure, const char* equal) {
        return [&rows, measure, wanted = std::string("equal=") + equal](Of row) {
            const int64_t budget =
                wanted == "equal=budget" ? row.budget() : row.sizes.at("matched_budget");
            const auto found = std::ranges::find_if(rows, [&](Of other) {
                return other.variant() == wanted && other.budget() == budget;
            });
            return found == rows.end() ? Value() : Value(found->measures.at(measure));
        };
    };
    const std::vector<ColumnOf<Row>> columns{
        {{"", "selector"}, &Row::selector},
        {{"", "budget"}, &Row::budget},
        {{"", "mass"}, own("mass_kept")},
        {{"", "mass\nwindow,\nequal\nbudget"}, window("mass_kept", "budget")},
        {{"", "FLOP-\nmatched\nbudget"}, [](Of row) { return row.sizes.at("matched_budget"); }},
        {{"", "mass\nwindow,\nequal\nFLOPs"}, window("mass_kept", "FLOPs")},
        {{"", "error"}, own("group_output_error")},
        {{"", "error\nwindow,\nequal\nbudget"}, window("group_output_error", "budget")},
        {{"", "error\nwindow,\nequal\nFLOPs"}, window("group_output_error", "FLOPs")}};
    std::vector<Row> selectors = rows;
    std::erase_if(selectors, [](Of row) { return row.sizes.at("matched_budget") == 0; });
    Rows(columns, selectors).print(out);
    out << "A window of equal FLOPs that holds more than half of the longest sequence is left "
           "out.\n";
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
                line.push_back(json_number(analysis::mean_overlap(a.view(), b.view())));
            matrix.push_back(line);
        }
        all.push_back({{"config", key}, {"layers", names}, {"overlap", matrix}});
    }
    return all;
}

ordered_json ties(const io::ResultsReader& results, const std::vector<LayerRows>& layers) {
    ordered_json all = ordered_json::array();
    for (const LayerRows& of : layers)
        for (const Row& row : of.rows)
            if (row.kind != "tokens")
                measure::read_ties(results, row.group(), row.layer, row.selector, row.setting, all);
    return all;
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

void print_layer(const io::ResultsReader& results, const LayerRows& of, Ablation ablation,
                 std::ostream& out) {
    const std::string& layer = of.layer;
    const int64_t counted = of.rows.front().sizes.at("rows_counted");
    const auto size = [&](const char* name) {
        return static_cast<int64_t>(results.number("/layers/" + layer, name));
    };
    const bool windowed = results.has("/layers/" + layer, "window");
    const std::string mark =
        windowed ? concat(", in a sliding window of ", size("window"), " tokens") : "";
    print_paragraph(out, concat("layer ", layer, mark, ": ", size("tokens"),
                                " tokens; averages over the ", counted, " of ", size("queries"),
                                " queries that see more than ", size("largest_budget"), " keys"));
    out << '\n';
    if (counted == 0)
        out << "No query sees more keys than the largest budget: choose smaller --budgets.\n\n";
    const bool with_setting =
        std::ranges::any_of(of.rows, [](Of row) { return !row.variant().empty(); });
    rows_of(of.rows, with_setting).print(out);
    const measure::DrawnBlocks from(results, "/query_blocks/" + layer);
    out << '\n';
    print_paragraph(
        out,
        from.text(results.run().seed) +
            (from.can_draw() ? " Every config sees the same draws. Best: keeps most mass of its "
                               "budget; =: not distinguishable from it, as the interval of the "
                               "difference holds 0. Oracles, and selectors that read more than "
                               "their budget, are neither."
                             : ""));
    if (ablation == Ablation::window) {
        out << "\n";
        print_windows(of.rows, out);
    }
    if (!of.notes.empty()) out << "\n";
    for (const std::string& note : of.notes) print_paragraph(out, note);
    const std::string checks = "/checks/" + layer;
    const auto count = [&](const char* name) {
        return static_cast<int64_t>(results.number(checks, name));
    };
    out << '\n';
    print_paragraph(
        out, concat("checked: no selector keeps more than the best choice of as many blocks, on ",
                    count("rows"), " rows; all blocks give dense attention, on ",
                    count("rows_with_all_blocks"), " rows, within a relative ",
                    number_text(results.number(checks, "largest_difference_from_dense"), 2)));
    out << '\n';
}

}  // namespace

std::string compare_definitions() {
    ordered_json definitions;
    for (const char* name : kMeasures) definitions[name] = analysis::metric(name).definition;
    for (const char* name : {"dead_groups", "layer_overlap"})
        definitions[name] = analysis::metric(name).definition;
    for (const char* name : measure::kTies) definitions[name] = analysis::metric(name).definition;
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

std::string compare_summary(const io::ResultsReader& results,
                            const std::vector<LayerRows>& layers) {
    ordered_json checks = ordered_json::array(), rows = ordered_json::array();
    for (const std::string& layer : results.list("/checks")) {
        ordered_json entry{{"layer", std::stoll(layer)}};
        for (const char* name : {"rows", "rows_with_all_blocks", "rows_undefined"})
            entry[name] = static_cast<int64_t>(results.number("/checks/" + layer, name));
        for (const char* name : {"largest_difference_from_dense", "largest_mass_bound"})
            entry[name] = json_number(results.number("/checks/" + layer, name));
        checks.push_back(entry);
    }
    ordered_json notes = ordered_json::object();
    for (const LayerRows& of : layers) {
        const Rows all = rows_of(of.rows, false);
        const measure::DrawnBlocks from(results, "/query_blocks/" + of.layer);
        for (size_t n = 0; n < of.rows.size(); ++n) {
            const Row& row = of.rows[n];
            rows.push_back(all.json(n));
            rows.back()["intervals"] = {
                {"mass_kept", measure::interval_json(row.mass, from)},
                {"group_output_error", measure::interval_json(row.error, from)}};
            rows.back()["behind"] = {{"selector", row.best}};
            rows.back()["behind"].update(estimate_json(row.behind));
        }
        notes[of.layer] = of.notes;
    }
    ordered_json summary = begin_summary("msa-compare-summary", results.run());
    summary.update(ordered_json{{"checks", checks},
                                {"rows", rows},
                                {"notes", notes},
                                {"dropped_sinks", rows_without_sinks(layers)},
                                {"ties", ties(results, layers)},
                                {"layer_overlap", layer_overlap(results)}});
    return summary.dump(2) + "\n";
}

std::string compare_csv(const io::ResultsReader& results, const std::vector<LayerRows>& layers) {
    Rows lines({{"layer"},
                {"selector"},
                {"setting"},
                {"budget"},
                {"block_size"},
                {"metric"},
                {"axis"},
                {"index"},
                {"value"}});
    for (const LayerRows& of : layers)
        for (const Row& row : of.rows) {
            const std::vector<Value> name{row.layer, row.selector, row.setting, row.budget(),
                                          row.sizes.at("block_size")};
            add_metric_values(results, row.group(), name, lines);
            for (const char* measure : kMeasures)
                if (!results.has(row.group() + "/" + measure)) {
                    std::vector<Value> line = name;
                    line.insert(line.end(), {measure, "", "", row.measures.at(measure)});
                    lines.add(line);
                }
        }
    return lines.csv();
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

void print_compare_tables(const io::ResultsReader& results, const std::vector<LayerRows>& layers,
                          std::ostream& out) {
    const auto o = recorded_options<CompareOptions>(results.run().options);
    print_paragraph(
        out,
        concat(o.ablation == Ablation::none ? "" : "unless the table says otherwise: ",
               "budgets in tokens, kept in blocks of ", o.block_size, "; one choice for each ",
               to_string(o.sharing), "; forced first ", list_text(o.forced_first), " and newest ",
               o.forced_local, " blocks ", o.forced_outside ? "outside" : "inside",
               " the budget (policies may force more); ", o.decode ? "decode" : "prefill",
               " phase"));
    out << '\n';
    for (const LayerRows& of : layers) print_layer(results, of, o.ablation, out);
    print_dropped_sinks(rows_without_sinks(layers), out);
    measure::print_ties(ties(results, layers), out);
    if (!layers.empty()) rows_of(layers.front().rows, false).print_definitions(out);
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
