// SPDX-License-Identifier: MIT
#include "experiments/analyze/summary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <stdexcept>

#include "analysis/metrics.h"
#include "analysis/recall.h"
#include "core/error.h"
#include "core/select/selector.h"
#include "experiments/analyze/options.h"
#include "experiments/driver/estimate.h"
#include "experiments/driver/full_layers.h"
#include "experiments/driver/learned_note.h"
#include "experiments/driver/metrics.h"
#include "experiments/driver/operands.h"
#include "experiments/driver/rows.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/sink_note.h"
#include "experiments/driver/table.h"
#include "experiments/measure/drawn.h"
#include "experiments/measure/ties.h"

namespace msa::experiments::analyze {
namespace {

using nlohmann::ordered_json;

/// A number of the summary: its metric, and where that is not of the selector, the dataset of dense
/// attention that has it.
struct Measure {
    const char* key;
    const char* of_dense = nullptr;
};

constexpr Measure kMeasures[] = {
    {"block_recall"},     {"score_recall"},
    {"mass_kept"},        {"oracle_mass"},
    {"output_error"},     {"sink_mass_dense", "sink_mass"},
    {"sink_mass_sparse"}, {"entropy_dense", "entropy"},
    {"entropy_sparse"},
};
constexpr const char* kCounts[] = {"rows_counted", "rows_trivial", "dead_heads"};

AnalyzeOptions options_of(const io::ResultsReader& results) {
    return recorded_options<AnalyzeOptions>(results.run().options);
}

struct Row {
    std::string layer, selector;
};

/// Layers, then selectors, in natural order.
std::vector<Row> rows(const io::ResultsReader& results) {
    std::vector<Row> all;
    for (const std::string& layer : results.list("/layers"))
        for (const std::string& selector : results.list("/metrics"))
            if (selector != "dense" && results.has("/metrics/" + selector + "/" + layer))
                all.push_back({layer, selector});
    return all;
}

std::string metrics_group(const Row& row, bool dense) {
    return "/metrics/" + (dense ? "dense" : row.selector) + "/" + row.layer;
}

double value(const io::ResultsReader& results, const Row& row, const Measure& of) {
    const bool dense = of.of_dense != nullptr;
    return results.number(metrics_group(row, dense), dense ? of.of_dense : of.key);
}

/// What all numbers of the table hang on.
void print_sizes(const io::ResultsReader& results, const std::string& layer, std::ostream& out) {
    const auto size = [&](const char* name) {
        return static_cast<int64_t>(results.number("/layers/" + layer, name));
    };
    out << size("tokens") << " tokens in blocks of " << size("block_size")
        << "; k = " << options_of(results).rule.top_k << " of " << size("blocks")
        << " blocks per query and group\n\n";
}

int64_t count(const io::ResultsReader& results, const Row& row, const char* name) {
    return static_cast<int64_t>(results.number(metrics_group(row, false), name));
}

/// The recalls and masses of a row, in the order of analysis::Recall::kColumns.
std::vector<analysis::Estimate> recalls(const io::ResultsReader& results, const Row& row,
                                        const measure::LayerNumbers& of) {
    std::vector<analysis::Estimate> estimates;
    for (const char* name : analysis::Recall::kColumns)
        estimates.push_back(
            analysis::with_interval(results.number(metrics_group(row, false), name),
                                    of.recall(row.selector + "/recall", name).draws));
    return estimates;
}

const std::vector<ColumnOf<Row>> kNames{
    {{"layer", "layer"}, [](const Row& row) { return int64_t{std::stoll(row.layer)}; }},
    {{"selector", "selector"}, &Row::selector}};

/// The table, with the counts that stand in files alone.
Rows measured(const io::ResultsReader& results) {
    std::vector<ColumnOf<Row>> columns = kNames;
    const std::vector<std::string> layers = results.list("/layers");
    if (std::ranges::any_of(layers, [&](const std::string& layer) {
            return results.has("/layers/" + layer, "window");
        }))
        columns.push_back({window_column(), [&](const Row& row) {
                               return window_value(results, "/layers/" + row.layer);
                           }});
    for (const Measure& of : kMeasures)
        columns.push_back(
            {metric_column(of.key), [&](const Row& row) { return value(results, row, of); }});
    for (const char* name : kCounts)
        columns.push_back(
            {{name}, [&, name](const Row& row) { return count(results, row, name); }});
    return {columns, rows(results)};
}

/// The learned indexers among the selectors, beside those that nobody trains.
ordered_json weak(const io::ResultsReader& results) {
    const std::vector<Row> all = rows(results);
    std::vector<Learned> learned;
    for (const Row& row : all) {
        if (make_selector(name_of_label(row.selector))->family() != Family::index_branch) continue;
        const auto number = [&](const Row& of, const char* name) {
            return results.number(metrics_group(of, false), name);
        };
        Learned& of =
            learned.emplace_back(Learned{std::stoll(row.layer), row.selector,
                                         number(row, "block_recall"), number(row, "mass_kept")});
        for (const Row& other : all) {
            if (other.layer != row.layer) continue;
            const std::string_view name = name_of_label(other.selector);
            if (name == "random") of.random_recall = number(other, "block_recall");
            if (name == "window" || name == "mean-key")
                of.rivals.push_back({other.selector, number(other, "mass_kept")});
        }
    }
    return weak_indexers(learned);
}

/// How sure the recalls and masses are, or why nothing says so.
void print_intervals(const io::ResultsReader& results, std::ostream& out) {
    std::vector<Column> columns;
    for (const ColumnOf<Row>& one : kNames) columns.push_back(one.column);
    for (const char* name : analysis::Recall::kColumns)
        columns.push_back({"",
                           concat(analysis::metric(name).heading, "\n95 % interval"),
                           {.shown = Shown::interval}});
    Rows sure(columns);
    std::string drawn;
    for (const Row& row : rows(results)) {
        const measure::LayerNumbers numbers(results, row.layer);
        if (drawn.empty() || numbers.drawn().can_draw())
            drawn = numbers.drawn().text(results.run().seed);
        if (!numbers.drawn().can_draw()) continue;
        std::vector<Value> values;
        for (const ColumnOf<Row>& one : kNames) values.push_back(one.value(row));
        for (const analysis::Estimate& of : recalls(results, row, numbers)) values.emplace_back(of);
        sure.add(values);
    }
    out << '\n';
    sure.print(out);
    print_paragraph(out, drawn);
}

ordered_json sinks_that_are_dropped(const io::ResultsReader& results) {
    ordered_json all = ordered_json::array();
    for (const Row& row : rows(results)) {
        all.push_back({{"layer", std::stoll(row.layer)}, {"selector", row.selector}});
        for (const Measure& of : {Measure{"sink_mass_dense", "sink_mass"}, {"sink_mass_sparse"}})
            all.back()[of.key] = json_number(value(results, row, of));
    }
    return dropped_sinks(all);
}

ordered_json ties(const io::ResultsReader& results) {
    ordered_json all = ordered_json::array();
    for (const Row& row : rows(results))
        measure::read_ties(results, metrics_group(row, false), row.layer, row.selector, "", all);
    return all;
}

/// The choices that stand behind every number.
void print_choices(const io::ResultsReader& results, std::ostream& out) {
    const AnalyzeOptions o = options_of(results);
    out << '\n';
    print_paragraph(
        out,
        concat("Blocks of ", o.block_size, " tokens, k = ", o.rule.top_k, " with the newest ",
               o.rule.forced_local, " and the oldest ", list_text(o.forced_first),
               " forced. I*: the blocks of highest ", o.oracle_by_logit ? "maximum logit" : "mass",
               ", the query's own block ", o.oracle_without_local ? "excluded" : "included", '.'));
    print_paragraph(out, elements_text(results.run()));
    print_captures(results.run(), out);
}

}  // namespace

std::string metric_definitions(const std::string& note) {
    ordered_json definitions;
    for (const Measure& of : kMeasures) definitions[of.key] = analysis::metric(of.key).definition;
    for (const char* name : measure::kTies) definitions[name] = analysis::metric(name).definition;
    definitions["dead_heads"] = analysis::metric("dead_heads").definition;
    definitions["rows_counted"] =
        "queries in the averages of recall, mass and output error; averages go over queries, then "
        "over groups or heads";
    definitions["rows_trivial"] =
        "queries left out because all their visible blocks fit into k (unless --all-rows)";
    definitions["intervals"] = measure::kIntervalsWords;
    if (!note.empty()) definitions["top_k"] = note;
    return definitions.dump();
}

std::string summary_json(const io::ResultsReader& results) {
    ordered_json summary = begin_summary("msa-summary", results.run());
    summary["rows"] = measured(results).json();
    const std::vector<Row> all = rows(results);
    for (size_t r = 0; r < all.size(); ++r) {
        const measure::LayerNumbers numbers(results, all[r].layer);
        const std::vector<analysis::Estimate> sure = recalls(results, all[r], numbers);
        for (size_t n = 0; n < sure.size(); ++n)
            summary["rows"][r]["intervals"][analysis::Recall::kColumns[n]] =
                measure::interval_json(sure[n], numbers.drawn());
    }
    summary["dropped_sinks"] = sinks_that_are_dropped(results);
    summary["weak_indexers"] = weak(results);
    summary["ties"] = ties(results);
    return summary.dump(2) + "\n";
}

std::string metrics_csv(const io::ResultsReader& results) {
    Rows lines({{"layer"}, {"selector"}, {"metric"}, {"axis"}, {"index"}, {"value"}});
    for (const std::string& layer : results.list("/layers"))
        for (const std::string& selector : results.list("/metrics")) {
            const std::string group = "/metrics/" + selector + "/" + layer;
            if (results.has(group)) add_metric_values(results, group, {layer, selector}, lines);
        }
    return lines.csv();
}

void print_table(const io::ResultsReader& results, std::ostream& out) {
    const std::vector<Row> all = rows(results);
    if (!all.empty()) print_sizes(results, all.front().layer, out);
    const Rows table = measured(results);
    table.print(out);
    out << '\n';
    table.print_definitions(out);
    print_intervals(results, out);
    print_choices(results, out);
    print_dropped_sinks(sinks_that_are_dropped(results), out);
    print_weak_indexers(weak(results),
                        "more --steps or a larger --index-dim of msa-fit-indexer, or "
                        "--forced-first 1",
                        out);
    print_windows(results, "/layers", out);
    measure::print_ties(ties(results), out);
    if (!all.empty()) {
        const int64_t counted = count(results, all.front(), "rows_counted");
        const int64_t trivial = count(results, all.front(), "rows_trivial");
        out << "Queries counted: " << counted
            << "; left out because all their blocks fit into k: " << trivial
            << " (--all-rows counts them).\n";
        if (counted == 0)
            out << "No query has more visible blocks than k: choose a smaller --block-size or "
                   "--top-k, or --all-rows.\n";
    }
}

void check_mass_bounds(const io::ResultsReader& results) {
    const bool by_mass = !options_of(results).oracle_by_logit;
    for (const Row& row : rows(results)) {
        const std::string group = metrics_group(row, false);
        const double kept = results.number(group, "mass_kept");
        const double oracle = results.number(group, "oracle_mass");
        // Both are means of sums over the same float masses; the oracle's blocks are the largest.
        const double rounding = results.number("/checks/" + row.layer, "largest_mass_bound");
        if ((by_mass && kept > oracle + rounding) || kept > 1 + rounding)
            throw std::logic_error(concat("layer ", row.layer, ": ", row.selector, " keeps ", kept,
                                          " of the mass, the oracle ", oracle));
    }
}

}  // namespace msa::experiments::analyze
