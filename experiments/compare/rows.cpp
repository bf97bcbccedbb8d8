// SPDX-License-Identifier: MIT
#include "experiments/compare/rows.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/select/token_selector.h"
#include "experiments/driver/run.h"
#include "experiments/driver/sink_note.h"

namespace msa::experiments::compare {

std::vector<Row> read_rows(const io::ResultsReader& results) {
    std::vector<Row> rows;
    for (const std::string& layer : results.list("/layers"))
        for (const std::string& key : results.list("/metrics")) {
            Row row{layer, key, "", "", 0};
            if (!results.has(row.group())) continue;
            row.selector = results.text(row.group(), "selector");
            row.setting = results.text(row.group(), "setting");
            row.budget = row.size(results, "budget");
            rows.push_back(row);
        }
    const std::vector<std::string> order = list_policies();
    const auto rank = [&](const Row& row) {
        return std::find(order.begin(), order.end(), name_of_label(row.selector)) - order.begin();
    };
    std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
        if (a.layer != b.layer) return std::stoll(a.layer) < std::stoll(b.layer);
        if (rank(a) != rank(b)) return rank(a) < rank(b);
        if (a.selector != b.selector) return a.selector < b.selector;
        return a.budget < b.budget;
    });
    return rows;
}

std::vector<std::string> layers_of(const std::vector<Row>& rows) {
    std::vector<std::string> layers;
    for (const Row& row : rows)
        if (layers.empty() || layers.back() != row.layer) layers.push_back(row.layer);
    return layers;
}

std::vector<Row> of_layer(const std::vector<Row>& rows, const std::string& layer) {
    std::vector<Row> some;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(some),
                 [&](const Row& row) { return row.layer == layer; });
    return some;
}

namespace {

/// A note of every policy that reads more than its budget.
std::vector<std::string> over_budget_notes(const io::ResultsReader& results,
                                           const std::vector<Row>& rows) {
    std::vector<std::string> notes;
    std::string last;
    for (const Row& row : rows) {
        if (!row.over_budget(results) || row.selector == last) continue;
        last = row.selector;
        notes.push_back(
            concat(row.selector,
                   ": * reads more tokens than its budget, compare it at the tokens that "
                   "it reads"));
    }
    return notes;
}

}  // namespace

std::vector<std::string> read_notes(const io::ResultsReader& results,
                                    const std::vector<Row>& rows) {
    std::vector<std::string> notes = over_budget_notes(results, rows);
    std::string last;
    for (const Row& row : rows) {
        if (row.selector == last) continue;
        last = row.selector;
        const std::unique_ptr<Policy> policy = make_policy(row.selector);
        if (const auto* of_tokens = dynamic_cast<const TokenSelector*>(policy.get()))
            notes.push_back(
                concat(of_tokens->name(), ": every query reads the same number of tokens, ",
                       "the mean over all queries of the phase of what the blocks of the ",
                       "budget hold"));
        if (!policy->note().empty()) notes.push_back(concat(row.selector, ": ", policy->note()));
        if (!policy->needs().previous_layer) continue;
        const auto previous =
            static_cast<int64_t>(results.number("/layers/" + row.layer, "previous_layer"));
        const int64_t before = std::stoll(row.layer) - 1;
        if (previous != before)
            notes.push_back(concat(row.selector, ": layer ", before, " is not in the file, layer ",
                                   previous, " stands in for it"));
    }
    return notes;
}

nlohmann::ordered_json rows_without_sinks(const io::ResultsReader& results) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    for (const Row& row : read_rows(results)) {
        rows.push_back({{"layer", std::stoll(row.layer)},
                        {"selector", row.selector},
                        {"setting", row.setting}});
        for (const char* name : {"sink_mass_dense", "sink_mass_sparse"})
            rows.back()[name] = json_number(row.value(results, name));
    }
    return dropped_sinks(rows);
}

}  // namespace msa::experiments::compare
