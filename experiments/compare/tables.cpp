// SPDX-License-Identifier: MIT
#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "core/error.h"
#include "experiments/compare/rows.h"
#include "experiments/compare/summary.h"
#include "experiments/driver/table.h"

namespace msa::experiments::compare {
namespace {

constexpr int kDecimals = 4;

std::vector<Row> of_layer(const std::vector<Row>& rows, const std::string& layer) {
    std::vector<Row> some;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(some),
                 [&](const Row& row) { return row.layer == layer; });
    return some;
}

/// The distinct values of a property of the rows, in their order.
template <typename Property>
auto distinct(const std::vector<Row>& rows, Property property) {
    std::vector<decltype(property(rows.front()))> values;
    for (const Row& row : rows)
        if (std::find(values.begin(), values.end(), property(row)) == values.end())
            values.push_back(property(row));
    return values;
}

/// A measure of the row that `found` accepts, "-" where there is none.
template <typename Found>
std::string cell(const io::ResultsReader& results, const std::vector<Row>& rows,
                 const std::string& measure, Found found) {
    const auto row = std::find_if(rows.begin(), rows.end(), found);
    return row == rows.end() ? "-" : fixed_text(row->value(results, measure), kDecimals);
}

/// Selectors by budgets, with what the scores cost.
void print_budgets(const io::ResultsReader& results, const std::vector<Row>& rows,
                   std::ostream& out) {
    const auto budgets = distinct(rows, [](const Row& row) { return row.budget; });
    std::vector<std::string> header{"selector"};
    for (const char* measure : {"mass", "error"})
        for (int64_t budget : budgets) header.push_back(text(measure, "\n", budget));
    header.insert(header.end(), {"index\nkFLOP", "index\nKiB"});
    Table table(header);
    for (const std::string& selector : distinct(rows, [](const Row& r) { return r.selector; })) {
        std::vector<std::string> cells{selector};
        for (const char* measure : {"mass_kept", "output_error"})
            for (int64_t budget : budgets)
                cells.push_back(cell(results, rows, measure, [&](const Row& row) {
                    return row.selector == selector && row.budget == budget;
                }));
        const auto any = std::find_if(rows.begin(), rows.end(),
                                      [&](const Row& row) { return row.selector == selector; });
        cells.push_back(fixed_text(any->value(results, "index_flops") / 1000, 1));
        cells.push_back(fixed_text(any->value(results, "index_bytes") / 1024, 1));
        table.add(cells);
    }
    table.print(out);
}

/// Selectors and budgets by what the ablation varies.
void print_variants(const io::ResultsReader& results, const std::vector<Row>& rows,
                    std::ostream& out) {
    const auto variants = distinct(rows, [](const Row& row) { return row.variant(); });
    std::vector<std::string> header{"selector", "budget"};
    for (const char* measure : {"mass", "error"})
        for (const std::string& variant : variants) {
            std::string lines = text(measure, "\n", variant);
            std::replace(lines.begin(), lines.end(), ',', '\n');
            header.push_back(lines);
        }
    Table table(header);
    for (const std::string& selector : distinct(rows, [](const Row& r) { return r.selector; }))
        for (int64_t budget : distinct(rows, [](const Row& row) { return row.budget; })) {
            std::vector<std::string> cells{selector, std::to_string(budget)};
            for (const char* measure : {"mass_kept", "output_error"})
                for (const std::string& variant : variants)
                    cells.push_back(cell(results, rows, measure, [&](const Row& row) {
                        return row.selector == selector && row.budget == budget &&
                               row.variant() == variant;
                    }));
            table.add(cells);
        }
    table.print(out);
}

/// Every selector beside the windows of its budget and of its FLOPs.
void print_windows(const io::ResultsReader& results, const std::vector<Row>& rows,
                   std::ostream& out) {
    Table table({"selector", "budget", "mass", "mass\nwindow,\nequal\nbudget",
                 "FLOP-\nmatched\nbudget", "mass\nwindow,\nequal\nFLOPs", "error",
                 "error\nwindow,\nequal\nbudget", "error\nwindow,\nequal\nFLOPs"});
    for (const Row& row : rows) {
        const int64_t matched = row.size(results, "matched_budget");
        if (matched == 0) continue;
        const auto window = [&](const char* measure, int64_t budget) {
            return cell(results, rows, measure, [&](const Row& other) {
                return other.selector == "window" && other.budget == budget;
            });
        };
        const auto own = [&](const char* measure) {
            return fixed_text(row.value(results, measure), kDecimals);
        };
        table.add({row.selector, std::to_string(row.budget), own("mass_kept"),
                   window("mass_kept", row.budget), std::to_string(matched),
                   window("mass_kept", matched), own("output_error"),
                   window("output_error", row.budget), window("output_error", matched)});
    }
    table.print(out);
}

void print_layer(const io::ResultsReader& results, const std::string& layer,
                 const std::string& ablation, std::ostream& out) {
    const std::vector<Row> rows = of_layer(read_rows(results), layer);
    const auto size = [&](const char* name) {
        return static_cast<int64_t>(results.number("/layers/" + layer, name));
    };
    out << "layer " << layer << ": " << size("tokens") << " tokens; averages over the "
        << rows.front().size(results, "rows_counted") << " of " << size("queries")
        << " queries that see more than " << size("largest_budget") << " keys\n\n";
    if (rows.front().size(results, "rows_counted") == 0)
        out << "No query sees more keys than the largest budget: choose smaller --budgets.\n\n";
    if (ablation == "none")
        print_budgets(results, rows, out);
    else if (ablation == "window")
        print_windows(results, rows, out);
    else
        print_variants(results, rows, out);
    const std::string checks = "/checks/" + layer;
    out << "\nchecked: no selector keeps more than the best choice of as many blocks, on "
        << static_cast<int64_t>(results.number(checks, "rows"))
        << " rows; all blocks give dense attention, on "
        << static_cast<int64_t>(results.number(checks, "rows_with_all_blocks"))
        << " rows, within a relative "
        << number_text(results.number(checks, "largest_difference_from_dense"), 2) << "\n\n";
}

}  // namespace

void print_compare_tables(const io::ResultsReader& results, std::ostream& out) {
    const auto options = nlohmann::ordered_json::parse(results.run().options);
    out << "budgets in tokens, kept in blocks of " << options["block_size"]
        << " unless the table says otherwise; one choice for each "
        << options["share"].get<std::string>() << "; forced first " << options["forced_first"]
        << " and newest " << options["forced_local"] << " blocks "
        << options["forced"].get<std::string>() << " the budget (policies may force more); "
        << options["phase"].get<std::string>() << " phase\n\n";
    for (const std::string& layer : results.list("/layers"))
        print_layer(results, layer, options["ablation"], out);
    Table definitions({"number", "definition"});
    for (const Measure& measure : kMeasures) definitions.add({measure.name, measure.definition});
    definitions.print(out);
}

}  // namespace msa::experiments::compare
