// SPDX-License-Identifier: MIT
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

#include "core/error.h"
#include "experiments/compare/intervals.h"
#include "experiments/compare/rows.h"
#include "experiments/compare/summary.h"
#include "experiments/driver/sink_note.h"
#include "experiments/driver/table.h"

namespace msa::experiments::compare {
namespace {

constexpr int kDecimals = 4;

/// "[0.8421, 0.8469]"
std::string interval_text(const analysis::Estimate& of) {
    return std::isnan(of.low)
               ? "-"
               : "[" + fixed_text(of.low, kDecimals) + ", " + fixed_text(of.high, kDecimals) + "]";
}

/// "=" where a candidate is not distinguishable from the best of its setting.
std::string beside_the_best(const Row& row, const Sure& sure) {
    if (sure.is_candidate && row.selector == sure.best) return "best";
    return sure.like_the_best() ? "=" : "";
}

/// One config a line: what it read, what it kept and how sure that is, what its scores cost.
void print_configs(const io::ResultsReader& results, const std::vector<Row>& rows,
                   const std::string& ablation, std::ostream& out) {
    std::vector<std::string> header{"selector", "budget"};
    if (ablation != "none") header.emplace_back("setting");
    header.insert(header.end(), {"blocks\nkept", "tokens\nread", "mass", "95 %\ninterval",
                                 "beside\nthe best", "error", "index\nkFLOP", "index\nKiB"});
    Table table(header);
    const std::vector<Sure> sure = measure_sureness(results, rows);
    for (size_t n = 0; n < rows.size(); ++n) {
        const Row& row = rows[n];
        const auto number = [&](const char* measure, double unit, int decimals) {
            return fixed_text(row.value(results, measure) / unit, decimals);
        };
        std::vector<std::string> cells{row.selector, std::to_string(row.budget)};
        if (ablation != "none") cells.push_back(row.variant());
        cells.insert(cells.end(),
                     {number("blocks_kept", 1, 2),
                      number("tokens_read", 1, 1) + (row.over_budget(results) ? "*" : ""),
                      number("mass_kept", 1, kDecimals), interval_text(sure[n].mass),
                      beside_the_best(row, sure[n]), number("group_output_error", 1, kDecimals),
                      number("index_flops", 1000, 1), number("index_bytes", 1024, 1)});
        table.add(cells);
    }
    table.print(out);
}

/// A measure of the row that `found` accepts, "-" where there is none.
template <typename Found>
std::string cell(const io::ResultsReader& results, const std::vector<Row>& rows,
                 const std::string& measure, Found found) {
    const auto row = std::find_if(rows.begin(), rows.end(), found);
    return row == rows.end() ? "-" : fixed_text(row->value(results, measure), kDecimals);
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
        const auto window = [&](const char* measure, const char* equal) {
            const int64_t budget = std::string(equal) == "equal=budget" ? row.budget : matched;
            return cell(results, rows, measure, [&](const Row& other) {
                return other.variant() == equal && other.budget == budget;
            });
        };
        const auto own = [&](const char* measure) {
            return fixed_text(row.value(results, measure), kDecimals);
        };
        table.add({row.selector, std::to_string(row.budget), own("mass_kept"),
                   window("mass_kept", "equal=budget"), std::to_string(matched),
                   window("mass_kept", "equal=FLOPs"), own("group_output_error"),
                   window("group_output_error", "equal=budget"),
                   window("group_output_error", "equal=FLOPs")});
    }
    table.print(out);
    out << "A window of equal FLOPs that holds more than half of the longest sequence is left "
           "out.\n";
}

void print_layer(const io::ResultsReader& results, const std::string& layer,
                 const std::string& ablation, std::ostream& out) {
    const std::vector<Row> rows = of_layer(read_rows(results), layer);
    const auto size = [&](const char* name) {
        return static_cast<int64_t>(results.number("/layers/" + layer, name));
    };
    print_paragraph(out,
                    concat("layer ", layer, ": ", size("tokens"), " tokens; averages over the ",
                           rows.front().size(results, "rows_counted"), " of ", size("queries"),
                           " queries that see more than ", size("largest_budget"), " keys"));
    out << '\n';
    if (rows.front().size(results, "rows_counted") == 0)
        out << "No query sees more keys than the largest budget: choose smaller --budgets.\n\n";
    print_configs(results, rows, ablation, out);
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
    if (ablation == "window") {
        out << "\n";
        print_windows(results, rows, out);
    }
    const std::vector<std::string> notes = read_notes(results, rows);
    if (!notes.empty()) out << "\n";
    for (const std::string& note : notes) print_paragraph(out, note);
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

void print_compare_tables(const io::ResultsReader& results, std::ostream& out) {
    const auto options = nlohmann::ordered_json::parse(results.run().options);
    print_paragraph(
        out, concat("budgets in tokens, kept in blocks of ", options["block_size"],
                    " unless the table says otherwise; one choice for each ",
                    options["share"].get<std::string>(), "; forced first ", options["forced_first"],
                    " and newest ", options["forced_local"], " blocks ",
                    options["forced"].get<std::string>(), " the budget (policies may force more); ",
                    options["phase"].get<std::string>(), " phase"));
    out << '\n';
    for (const std::string& layer : results.list("/layers"))
        print_layer(results, layer, options["ablation"], out);
    print_dropped_sinks(rows_without_sinks(results), out);
    Table definitions({"number", "definition"});
    for (const Measure& measure : kMeasures) definitions.add({measure.name, measure.definition()});
    definitions.print(out);
}

}  // namespace msa::experiments::compare
