// SPDX-License-Identifier: MIT
// The answer of msa-analyze as tables.
#include <nlohmann/json.hpp>

#include "experiments/analyze/findings.h"
#include "experiments/analyze/options.h"
#include "experiments/driver/full_layers.h"
#include "experiments/driver/operands.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/measure/sinks.h"
#include "experiments/measure/ties.h"
#include "experiments/programs.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments::analyze {
namespace {

constexpr const char* kNoteOnTopK = "top_k";

report::Column window_or_none() {
    report::Column column = report::shown(report::kWindow, "window");
    column.null = "the layer has none";
    return column;
}

const report::TableOf<Row> kSelectors{
    "selectors", "what each selector keeps", 2,
    report::joined<Row>(
        {{{report::kLayer, &Row::layer},
          {report::kSelector, &Row::selector},
          {window_or_none(), &Row::window}},
         measure::metric_columns<Row>(
             kMeasured,
             {{"block_recall", "block\nrecall"},
              {"score_recall", "score\nrecall"},
              {"mass_kept", "mass\nkept", {.shown = report::Shown::interval}},
              {"oracle_mass", "oracle\nmass"},
              {"output_error", "output\nerror"},
              {"sink_mass_dense", "sink\ndense"},
              {"sink_mass_sparse", "sink\nsparse"},
              {"entropy_dense", "entropy\ndense"},
              {"entropy_sparse", "entropy\nsparse"}},
             &Row::kept),
         {{report::kRowsCounted, &Row::counted},
          {{"rows_trivial", "queries",
            "queries left out because all their visible blocks fit into k (unless --all-rows)"},
           &Row::trivial},
          {report::hidden(report::metric("dead_heads")), &Row::dead_heads},
          {report::kQueryBlocks, &Row::blocks},
          {report::kSequences, &Row::sequences}}})};

std::string sizes_text(const io::ResultsReader& results, const AnalyzeOptions& o,
                       const Row& first) {
    const auto size = [&](const char* name) {
        return static_cast<int64_t>(results.number(concat("/layers/", first.layer), name));
    };
    return concat(size("tokens"), " tokens in blocks of ", size("block_size"),
                  "; k = ", o.rule.top_k, " of ", size("blocks"), " blocks per query and group");
}

/// The choices that stand behind every number.
std::string choices_text(const AnalyzeOptions& o) {
    return concat("Blocks of ", o.block_size, " tokens, k = ", o.rule.top_k, " with the newest ",
                  o.rule.forced_local, " and the oldest ", join(o.forced_first),
                  " forced. I*: the blocks of highest ",
                  o.oracle_by_logit ? "maximum logit" : "mass", ", the query's own block ",
                  o.oracle_without_local ? "excluded" : "included", '.');
}

std::string counted_text(const Row& first) {
    std::string text = concat("Queries counted: ", first.counted,
                              "; left out because all their blocks fit into k: ", first.trivial,
                              " (--all-rows counts them).");
    if (first.counted == 0)
        text +=
            "\nNo query has more visible blocks than k: choose a smaller --block-size or "
            "--top-k, or --all-rows.";
    return text;
}

}  // namespace

std::vector<report::Shape> tables() {
    return {kSelectors.shape(), weak_shape(), measure::dropped_sinks_shape()};
}

std::string definitions_with(const std::string& note) {
    auto all = nlohmann::ordered_json::parse(report::definitions(tables()));
    if (!note.empty()) all[kNoteOnTopK] = note;
    return all.dump();
}

report::Report make_report(const io::ResultsReader& results, const Findings& findings) {
    const auto o = recorded_options<AnalyzeOptions>(results.run().options);
    const std::vector<Row>& rows = findings.rows;
    report::Report report{.title = rows.empty() ? "" : sizes_text(results, o, rows.front()),
                          .tables = {kSelectors.of(rows), weak_table(findings.weak)}};
    std::vector<measure::Sink> sinks;
    std::vector<measure::Tie> ties;
    for (const Row& row : rows) {
        sinks.push_back({row.layer, row.selector, std::nullopt, row.kept["sink_mass_dense"].value,
                         row.kept["sink_mass_sparse"].value});
        ties.push_back({row.layer, row.selector, row.kept["tied"].value,
                        row.kept["tied_by_rounding"].value, row.kept["all_tied"].value});
    }
    report.note(report::kIntervals, findings.intervals);
    report.note("choices", choices_text(o));
    report.note(kNoteOnTopK,
                nlohmann::ordered_json::parse(results.run().definitions).value(kNoteOnTopK, ""));
    report.note("elements", elements_text(results.run()));
    report.note("captures", captures_text(results.run()));
    measure::add_dropped_sinks(sinks, report);
    report.note(
        "weak_indexers",
        weak_note(findings.weak, concat("more --steps or a larger --index-dim of msa-fit-indexer",
                                        o.forced_first.back() > 0 ? "" : ", or --forced-first 1")));
    report.note("windows", windows_note(results, "/layers"));
    report.note("ties", measure::ties_text(ties));
    if (!rows.empty()) report.note("counted", counted_text(rows.front()));
    return report;
}

}  // namespace msa::experiments::analyze
