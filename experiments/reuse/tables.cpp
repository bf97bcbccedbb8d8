// SPDX-License-Identifier: MIT
// The answer of msa-reuse as tables.
#include <limits>

#include "experiments/driver/operands.h"
#include "experiments/driver/run_record.h"
#include "experiments/programs.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"
#include "experiments/reuse/sharing.h"

namespace msa::experiments::reuse {
namespace {

using report::Column, report::ColumnOf, report::Form, report::Shown;

constexpr int kDecimals = 4;
constexpr const char* kError = "output error";

/// The columns of the numbers of a row's `kept`; the recalls on the page if there is room.
template <typename Row>
std::vector<ColumnOf<Row>> metric_columns(bool with_recalls = true) {
    const auto heading = [&](const char* of) { return with_recalls ? of : ""; };
    return measure::metric_columns<Row>({},
                                        {{"mass_kept", "mass kept"},
                                         {"mass_lost", "mass lost", {.shown = Shown::interval}},
                                         {"block_recall", heading("recall\nof oracle")},
                                         {"own_recall", heading("recall\nof own ids")},
                                         {"output_error", "output error"}},
                                        &Row::kept);
}

/// The measure of the same layers with their own ids.
ColumnOf<AtDistance> own_column(const char* metric, const char* heading) {
    Column column = report::shown(report::metric(metric), heading);
    column.definition = concat(column.key, " of the same target layers with their own ids");
    column.key = "own_" + column.key;
    return {column, [metric](const AtDistance& row) { return row.own[metric]; }};
}

const Column kDistance{"distance", "layers",
                       "number of the target layer less that of the source layer", "distance"};

const report::TableOf<Pair> kPairs{
    "pairs", "a layer with the ids of each measured layer up to it", 2,
    report::joined<Pair>({{{{"source", "", "layer whose ids are taken"}, &Pair::source},
                           {{"target", "", "layer that takes them"}, &Pair::target},
                           {report::hidden(kDistance), &Pair::distance}},
                          report::hidden(metric_columns<Pair>())})};

const report::TableOf<AtDistance> kDistances{
    "distances", "by distance in layers, mean over the pairs", 1,
    report::joined<AtDistance>(
        {{{kDistance, &AtDistance::distance},
          {{"pairs", "", "pairs of layers at this distance", "pairs"}, &AtDistance::pairs}},
         metric_columns<AtDistance>(),
         {own_column("mass_kept", "own ids keep"), own_column("block_recall", ""),
          own_column("output_error", "")}})};

constexpr Form kTime{.words = time_text};

/// Three columns of a cost; `what`: before their keys.
std::vector<ColumnOf<Shared>> cost_columns(const std::string& what, Cost Shared::*cost,
                                           const std::string& definition) {
    std::vector<ColumnOf<Shared>> columns{
        {report::shown(report::kSeconds, "time", kTime),
         [cost](const Shared& row) { return (row.*cost).seconds; }},
        {report::kFlops, [cost](const Shared& row) { return (row.*cost).flops; }},
        {report::kBytes, [cost](const Shared& row) { return (row.*cost).bytes; }}};
    if (what.empty()) return columns;
    for (ColumnOf<Shared>& one : columns) {
        one.column.definition = concat(definition, ", of ", one.column.key);
        one.column.key = what + "_" + one.column.key;
        one.column.heading.clear();
    }
    return columns;
}

constexpr const char* kRoles[] = {"own", "asked", "best", "target_each", "target_mean"};

std::vector<ColumnOf<Shared>> pattern_columns() {
    std::vector<ColumnOf<Shared>> selection = cost_columns(
        "selection", &Shared::selection, "selection in the layers that compute ids: its part");
    selection.front().column = report::shown(selection.front().column, "selection", kTime);
    return report::joined<Shared>(
        {{{{"pattern_role", "",
            "why the pattern is here. own: every layer computes its own ids. asked: --every or "
            "--groups. best: the least mean mass lost of all patterns with so many layers that "
            "compute. target_each: the fewest computing layers with which every layer reaches the "
            "target, and of these patterns the one of the least mean mass lost. target_mean: the "
            "best with the fewest computing layers whose mean reaches the target"},
           [](const Shared& row) { return kRoles[static_cast<size_t>(row.role)]; }},
          {{"pattern", "", "name of the pattern of layers", "pattern"}, &Shared::name},
          {{"computing", "layers",
            "layers that compute ids; the others take those of the nearest "
            "earlier one",
            "compute"},
           [](const Shared& row) { return std::ssize(row.computing); }},
          {{"computing_layers", "", "their numbers, divided by spaces"},
           [](const Shared& row) { return join(row.computing, " "); }},
          {{"sources", "", "layer by layer, the layer whose ids it has, divided by spaces"},
           [](const Shared& row) { return join(row.sources, " "); }}},
         metric_columns<Shared>(false),
         {{{"most_lost", "probability", "mass_lost of the layer that loses most", "most lost"},
           &Shared::most_lost},
          {{"each_reaches", "", "every layer reaches the target, with the far end of its interval"},
           &Shared::each},
          {{"mean_reaches", "",
            "the mean over the layers reaches the target, with the far end of its interval"},
           &Shared::mean}},
         std::move(selection),
         cost_columns("", &Shared::cost, ""),
         {{{"share_of_own",
            "1",
            "seconds, relative to own ids in every layer",
            "of own",
            {.decimals = 3}},
           &Shared::of_own},
          {report::kShareOfDense, &Shared::of_dense}},
         cost_columns("saved", &Shared::saved,
                      "selection that is not done, against own ids in every layer: its part")});
}

const report::TableOf<Shared> kPatterns{
    "patterns",
    "patterns of layers, mean over the layers (best of n: the least mass lost with n layers that "
    "compute)",
    2, pattern_columns()};

const report::TableOf<Findings> kMeasured{
    "measured",
    "what was measured, and references",
    0,
    {{report::kMeasuredLayers, [](const Findings& all) { return join(all.layers, " "); }},
     {{"missing_layers", "",
       "layers of the model between them that were not measured; distances "
       "count them"},
      &Findings::missing},
     {report::kQueries, &Findings::queries},
     {report::kQueryBlocks, &Findings::blocks},
     {report::kSequences, &Findings::sequences},
     {report::kIsBound, &Findings::is_bound},
     {report::kIsExtrapolated,
      [](const Findings& all) { return all.asked.context > all.longest_sequence; }},
     {{"random_mass_kept", "probability", "mass_kept by random blocks, mean over the layers"},
      &Findings::floor_mass},
     {{"random_output_error", "relative", "output_error of random blocks, mean over the layers"},
      &Findings::floor_error},
     {report::hidden(report::metric("oracle_mass")),
      [](const Findings& all) { return report::without_interval(all.oracle_mass); }},
     {report::kDenseSeconds, [](const Findings& all) { return all.dense.seconds; }},
     {report::kDenseFlops, [](const Findings& all) { return all.dense.flops; }},
     {report::kDenseBytes, [](const Findings& all) { return all.dense.bytes; }}}};

std::string best_text(const Findings& findings, const char* where, const Shared* shared) {
    if (shared == nullptr) return concat("\n", where, ": no pattern.");
    return concat("\n", where, ": ", shared->computing.size(), " of ", findings.layers.size(),
                  " compute, ", layers_text(shared->computing), "; mass lost ",
                  text_of(shared->kept["mass_lost"]), ", of one layer at most ",
                  fixed_text(shared->most_lost, kDecimals), "; saves ",
                  time_text(shared->saved.seconds), " of selection (",
                  number_text(shared->saved.flops / kTera), " TFLOP, ",
                  number_text(shared->saved.bytes / kGiga), " GB), ",
                  fixed_text(100 * (1 - shared->of_own), 1), " % of the attention.");
}

/// The fewest layers that compute ids within the target, or the nearest pattern.
report::Verdict verdict(const Findings& findings) {
    const std::string target = concat("target: ", findings.asked.target_text(kError));
    const Shared *each = findings.find(Role::each), *mean = findings.find(Role::mean);
    if (each != nullptr || mean != nullptr)
        return {true, concat(target, "; fewest layers that compute ids:",
                             best_text(findings, "in every layer", each),
                             best_text(findings, "in the mean", mean))};
    const char* of = findings.asked.error ? "output_error" : "mass_lost";
    const Shared* nearest = nullptr;
    for (const Shared& shared : findings.patterns)
        if (shared.role == Role::best &&
            (nearest == nullptr || shared.kept[of].value < nearest->kept[of].value))
            nearest = &shared;
    if (nearest == nullptr) return {false, "attention is NaN: no pattern has a loss"};
    return {false, concat(target, ": no pattern reaches it; the nearest is ", nearest->name, ", ",
                          layers_text(nearest->computing), ", with mass kept ",
                          text_of(nearest->kept["mass_kept"]), " and output error ",
                          text_of(nearest->kept["output_error"]), "; larger --top-k keeps more")};
}

}  // namespace

std::vector<report::Shape> tables() {
    return {kDistances.shape(), kPatterns.shape(), kPairs.shape(),
            kMeasured.shape(),  windowed_shape(),  measure::dropped_sinks_shape()};
}

report::Report make_report(const io::ResultsReader& results) {
    const Findings findings = make_findings(results);
    const ReuseOptions& asked = findings.asked;
    report::Report report{
        .title =
            concat("ids of ", asked.selector, ", Bk ", asked.block_size, ", k ", asked.rule.top_k,
                   "; ", layers_text(findings.layers), '\n',
                   pricing_text(asked, std::ssize(findings.layers), findings.longest_sequence)),
        .tables = {kDistances.of(findings.distances), kPatterns.of(findings.patterns),
                   kPairs.of(findings.pairs), kMeasured.of(findings),
                   windowed_table(findings.windowed)},
        .verdict = verdict(findings)};
    report.note("references",
                concat("Random blocks keep ", fixed_text(findings.floor_mass, kDecimals),
                       " of the mass, output error ", fixed_text(findings.floor_error, kDecimals),
                       "; the oracle's keep ", fixed_text(findings.oracle_mass, kDecimals), "."));
    if (!findings.missing.empty())
        report.note("missing_layers",
                    "Not measured: layers " + findings.missing + ". Distances count them.");
    if (!findings.sharing_nothing.empty())
        report.note("sharing_nothing",
                    concat("No row: --every ", join(findings.sharing_nothing, ","),
                           ", which counts layers of the model, and leaves each of these its own "
                           "ids; --groups A-B names layers that share."));
    if (findings.is_bound)
        report.note("is_bound", asked.selector +
                                    " needs the attention that it is to spare: what it would cost "
                                    "is no saving that can be had.");
    report.note("windowed", windowed_note(findings.windowed));
    report.note(report::kIntervals,
                concat("Measured on ", findings.queries, " queries, the same in all layers. ",
                       measure::draws_text(findings.blocks, findings.sequences, findings.seed)));
    report.note("elements", concat("Costs are of bf16. ", elements_text(results.run())));
    measure::add_dropped_sinks(findings.sinks, report);
    report.note("captures", captures_text(results.run()));
    return report;
}

}  // namespace msa::experiments::reuse
