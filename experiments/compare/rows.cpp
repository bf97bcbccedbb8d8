// SPDX-License-Identifier: MIT
#include "experiments/compare/rows.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "core/error.h"
#include "core/select/token_selector.h"
#include "experiments/driver/run.h"
#include "experiments/driver/sink_note.h"
#include "experiments/driver/table.h"
#include "experiments/measure/drawn.h"

namespace msa::experiments::compare {
namespace {

Row read_row(const io::ResultsReader& results, const std::string& layer, const std::string& key) {
    Row row{.layer = layer, .key = key, .selector = "", .setting = "", .family = "", .kind = ""};
    for (const auto& [name, to] : {std::pair{"selector", &row.selector},
                                   {"setting", &row.setting},
                                   {"family", &row.family},
                                   {"kind", &row.kind}})
        *to = results.text(row.group(), name);
    for (const char* name : kSizes)
        row.sizes[name] = static_cast<int64_t>(results.number(row.group(), name));
    for (const char* name : kMeasures) row.measures[name] = results.number(row.group(), name);
    return row;
}

/// The estimates of a layer's rows.
void estimate(const io::ResultsReader& results, std::vector<Row>& rows) {
    const measure::LayerNumbers of(results, rows.front().layer);
    std::vector<std::vector<double>> masses;  // of each row, the draws
    std::map<std::string, size_t> best;       // by setting, the candidate of the highest mass kept
    for (size_t n = 0; n < rows.size(); ++n) {
        Row& row = rows[n];
        masses.push_back((row.kind == "tokens" ? of.mean(row.key + "/mass")
                                               : of.recall(row.key + "/recall", "mass_kept"))
                             .draws);
        row.mass = analysis::with_interval(row.mass_kept(), masses[n]);
        row.error = analysis::with_interval(row.measures["group_output_error"],
                                            of.error(row.key + "/group_output_error").draws);
        if (!row.is_candidate()) continue;
        const auto [at, is_new] = best.try_emplace(row.compared_setting(), n);
        if (!is_new && row.mass_kept() > rows[at->second].mass_kept()) at->second = n;
    }
    for (size_t n = 0; n < rows.size(); ++n) {
        const auto at = best.find(rows[n].compared_setting());
        if (at == best.end()) continue;
        rows[n].best = rows[at->second].selector;
        rows[n].behind =
            analysis::with_interval(rows[at->second].mass_kept() - rows[n].mass_kept(),
                                    measure::differences(masses[at->second], masses[n]));
    }
}

/// Of a selector's first row on a layer.
void add_notes(const io::ResultsReader& results, const Row& row, std::vector<std::string>& to) {
    const std::unique_ptr<Policy> policy = make_policy(row.selector);
    if (row.kind == "tokens")
        to.push_back(concat(policy->name(), ": every query reads the same number of tokens, ",
                            "the mean over all queries of the phase of what the blocks of the ",
                            "budget hold"));
    if (!policy->note().empty()) to.push_back(concat(row.selector, ": ", policy->note()));
    if (!policy->needs().previous_layer) return;
    const auto previous =
        static_cast<int64_t>(results.number("/layers/" + row.layer, "previous_layer"));
    const int64_t before = std::stoll(row.layer) - 1;
    if (previous != before)
        to.push_back(concat(row.selector, ": layer ", before, " is not in the file, layer ",
                            previous, " stands in for it"));
}

std::vector<std::string> read_notes(const io::ResultsReader& results,
                                    const std::vector<Row>& rows) {
    std::vector<std::string> notes;
    std::string last;
    for (const Row& row : rows) {
        if (!row.over_budget() || row.selector == last) continue;
        last = row.selector;
        notes.push_back(
            concat(row.selector,
                   ": * reads more tokens than its budget, compare it at the tokens that "
                   "it reads"));
    }
    last.clear();
    for (const Row& row : rows) {
        if (row.selector != last) add_notes(results, row, notes);
        last = row.selector;
    }
    return notes;
}

}  // namespace

std::string Row::variant() const {
    const size_t comma = setting.find(',');
    return comma == std::string::npos ? "" : setting.substr(comma + 1);
}

std::string Row::compared_setting() const {
    return variant() == "equal=budget" ? setting.substr(0, setting.find(',')) : setting;
}

bool Row::over_budget() const {
    return measures.at("tokens_read") > static_cast<double>(sizes.at("tokens_allowed"));
}

std::string Row::tokens_text() const {
    return fixed_text(measures.at("tokens_read"), 1) + (over_budget() ? "*" : "");
}

bool Row::is_candidate() const {
    return family != "oracle" && !over_budget() && variant() != "equal=FLOPs" &&
           !std::isnan(mass_kept());
}

std::string Row::beside_the_best() const {
    if (!is_candidate()) return "";
    if (selector == best) return "best";
    return behind.low <= 0 && behind.high >= 0 ? "=" : "";
}

std::vector<LayerRows> read_rows(const io::ResultsReader& results) {
    const std::vector<std::string> order = list_policies();
    std::vector<LayerRows> all;
    for (const std::string& layer : results.list("/layers")) {
        std::vector<Row> rows;
        for (const std::string& key : results.list("/metrics"))
            if (results.has("/metrics/" + key + "/" + layer))
                rows.push_back(read_row(results, layer, key));
        if (rows.empty()) continue;
        std::ranges::stable_sort(rows, {}, [&](const Row& row) {
            return std::tuple(std::ranges::find(order, name_of_label(row.selector)) - order.begin(),
                              row.selector, row.budget());
        });
        estimate(results, rows);
        std::vector<std::string> notes = read_notes(results, rows);
        all.push_back({layer, std::move(rows), std::move(notes)});
    }
    std::ranges::stable_sort(all, {}, [](const LayerRows& of) { return std::stoll(of.layer); });
    return all;
}

nlohmann::ordered_json rows_without_sinks(const std::vector<LayerRows>& layers) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const LayerRows& of : layers)
        for (const Row& row : of.rows) {
            all.push_back({{"layer", std::stoll(row.layer)},
                           {"selector", row.selector},
                           {"setting", row.setting}});
            for (const char* name : {"sink_mass_dense", "sink_mass_sparse"})
                all.back()[name] = json_number(row.measures.at(name));
        }
    return dropped_sinks(all);
}

}  // namespace msa::experiments::compare
