// SPDX-License-Identifier: MIT
// The answer of msa-fit-indexer as tables.
#include <nlohmann/json.hpp>

#include "analysis/metrics.h"
#include "experiments/driver/full_layers.h"
#include "experiments/driver/operands.h"
#include "experiments/driver/run_record.h"
#include "experiments/fit/architecture.h"
#include "experiments/fit/findings.h"
#include "experiments/fit/options.h"
#include "experiments/fit/state.h"
#include "experiments/programs.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments::fit {
namespace {

using report::Column, report::ColumnOf, report::Shown;

constexpr const char* kTopK = "top_k";
const Column kBestStep{
    "best_step", "",
    "training steps done before the evaluation that keeps most mass, whose weights are kept; it "
    "was chosen by the same held-out queries"};

std::vector<ColumnOf<Evaluated>> evaluation_columns() {
    std::vector<ColumnOf<Evaluated>> columns{
        {report::kLayer, &Evaluated::layer},
        {{"step", "", "training steps done", "steps"}, &Evaluated::step},
        {{"is_kept", "", "the weights of this evaluation are kept", "kept"}, &Evaluated::is_kept}};
    for (size_t n = 0; n < std::size(kMeasures); ++n) {
        const Column column = report::metric(kMeasures[n].metric);
        if (column.key.starts_with("entropy"))
            columns.emplace_back(column,
                                 [n](const Evaluated& e) { return e.values.*kMeasures[n].value; });
        else
            columns.emplace_back(column, [n](const Evaluated& e) { return e.measures[n]; });
    }
    return columns;
}

const report::TableOf<Evaluated> kEvaluations{
    "evaluations", "on the held-out queries: before the first step, the best, and after the last",
    2, evaluation_columns()};

const char* page_name(const Gain& of) { return analysis::metric(of.measure).heading; }

const report::TableOf<Gain> kGains{
    "gains",
    "what is kept, with intervals, and what was gained over the start, on the same draws",
    2,
    {{report::kLayer, &Gain::layer},
     {{"measure", "", "key of the measure among the columns"}, &Gain::measure},
     {{"measure_name", "", "its name in words", "measure"}, page_name},
     {{"at_start", "", "the measure before the first step", "start"}, &Gain::start},
     {{"at_kept", "", "the measure at the weights kept", "kept", {.shown = Shown::interval}},
      &Gain::kept},
     {{.key = "gain",
       .unit = "",
       .definition = "at_kept less at_start, with the interval of the difference; a KL gets better "
                     "by falling",
       .heading = "gain over\nthe start",
       .form = {.shown = Shown::interval},
       .null = "nobody trains the oracle"},
      &Gain::gain},
     {{.key = "is_distinguishable",
       .unit = "",
       .definition = "the interval of the gain does not hold 0",
       .heading = "distin-\nguishable",
       .null = "there is no gain, or no interval"},
      &Gain::is_distinguishable},
     {report::kQueryBlocks, &Gain::blocks},
     {report::kSequences, &Gain::sequences}}};

template <double Untrained::*kOf>
double of_untrained(const LayerFindings& of) {
    return of.untrained.*kOf;
}

Column window_or_none() {
    Column column = report::shown(report::kWindow, "window");
    column.null = "the layer has none";
    return column;
}

const report::TableOf<LayerFindings> kLayers{
    "layers",
    "by layer",
    1,
    {{report::kLayer, &LayerFindings::layer},
     {window_or_none(), &LayerFindings::window},
     {report::shown(kBestStep, "best\nstep"), &LayerFindings::best_step},
     {{"last_step", "", "training steps done in all", "last\nstep"}, &LayerFindings::last_step},
     {{"split", "", "which queries were trained on, which are held out"}, &LayerFindings::split},
     {{"warmup_steps", "", "first steps, with the KL over all visible keys"},
      &LayerFindings::warmup_steps},
     {{"train_queries", "", "queries that training steps draw from"},
      &LayerFindings::train_queries},
     {{"held_out_queries", "", "held-out queries evaluated"}, &LayerFindings::held_out_queries},
     {{"held_out_counted", "",
       "held-out queries with more visible blocks than k, in the averages of recall, mass and "
       "output error; averages go over queries, then over groups or heads"},
      &LayerFindings::rows_counted},
     {report::hidden(report::metric("dead_heads")), &LayerFindings::dead_heads},
     {report::hidden(report::metric("index_flops")), &LayerFindings::index_flops},
     {report::hidden(report::metric("index_bytes")), &LayerFindings::index_bytes},
     {{kFirstForced, "probability",
       "mass that the best evaluation keeps with the first block forced (--forced-first 1)",
       "first block\nforced"},
      &LayerFindings::first_forced_mass},
     {report::shown(kRandomRecall, "recall\nby chance"), of_untrained<&Untrained::random_recall>},
     {{"window_mass", "probability",
       "mass that the selector window keeps with as many blocks, the first one forced",
       "mass of\nwindow"},
      of_untrained<&Untrained::window_mass>},
     {{"mean_key_mass", "probability",
       "mass that the selector mean-key keeps with as many blocks, the first one forced",
       "mass of\nmean-key"},
      of_untrained<&Untrained::mean_key_mass>}}};

// Words.

/// What was fitted, and what its scores cost.
std::string architecture_text(const io::ResultsReader& results, const LayerFindings& of) {
    const IndexForm form = read_weights(results, of.layer).form();
    return concat(form.traits().name, ": ", form.groups, " index heads of ", form.index_dim,
                  " channels", fitted(form.architecture).heads, "; scores take ",
                  number_text(of.index_flops / 1000), " kFLOP per query and read ",
                  number_text(of.index_bytes / 1024), " KiB of keys");
}

std::string title(const io::ResultsReader& results, const FitOptions& o, const Findings& found) {
    const LayerFindings& first = found.layers.front();
    const std::string group = concat("/fit/", first.layer);
    return concat(results.number(group, "tokens"), " tokens in blocks of ", o.block_size,
                  "; k = ", o.rule.top_k, " of ", results.number(group, "blocks"),
                  " blocks per query and group; ", first.split, '\n',
                  architecture_text(results, first));
}

std::string worse_note(const Findings& found) {
    std::vector<int64_t> worse;
    for (const LayerFindings& of : found.layers)
        if (of.best_step < of.last_step) worse.push_back(of.layer);
    if (worse.empty()) return "";
    return concat("Made worse by further steps: ", layers_text(worse),
                  ". More queries to train on, fewer steps or a smaller --lr may help.");
}

/// Where the first block would be worth its slot.
std::string first_forced_note(const Findings& found) {
    constexpr double kWorth = 0.005;
    std::string gains;
    for (const Evaluated& e : found.evaluations) {
        const double forced =
            std::ranges::find(found.layers, e.layer, &LayerFindings::layer)->first_forced_mass;
        if (e.is_kept && forced > e.values.mass_kept + kWorth)
            add_item(gains, "; ", "layer ", e.layer, ", ", fixed_text(e.values.mass_kept, 3),
                     " to ", fixed_text(forced, 3));
    }
    if (gains.empty()) return "";
    return concat("Keeps more mass with the first block forced (--forced-first 1): ", gains, ".");
}

std::string remedy(const io::ResultsReader& results, const FitOptions& o, int64_t layer) {
    const auto head_dim = static_cast<int64_t>(results.number(concat("/fit/", layer), "head_dim"));
    std::string words = "more --steps";
    if (o.index_dim < head_dim && head_dim <= kMaxIndexDim)
        words += concat(", --index-dim ", head_dim, " (the channels of the model's heads)");
    if (o.rule.forced_first == 0)
        words += ", --forced-first 1, with which window and mean-key are measured here";
    return words;
}

std::string intervals_note(const Findings& found) {
    if (!found.has_intervals) return found.intervals;
    return found.intervals +
           " The gain is of the same draws at the start and of the weights kept; where its "
           "interval holds 0, the two are not distinguishable on these queries.";
}

}  // namespace

std::vector<report::Shape> tables() {
    return {kEvaluations.shape(), kLayers.shape(), kGains.shape(), weak_shape()};
}

std::string definitions_with(const std::string& note) {
    auto all = nlohmann::ordered_json::parse(report::definitions(tables()));
    if (!note.empty()) all[kTopK] = note;
    return all.dump();
}

report::Report make_report(const io::ResultsReader& results) {
    const Findings found = make_findings(results);
    const auto o = recorded_options<FitOptions>(results.run().options);
    const report::Table gains = kGains.of(found.gains);
    report::Report report{
        .title = title(results, o, found),
        .tables = {kEvaluations.of(found.evaluations), kLayers.of(found.layers),
                   found.has_intervals ? gains : gains.hidden(), weak_table(found.weak)}};
    report.note("kept", "Kept: the weights of the evaluation that keeps most mass.");
    report.note(kTopK, nlohmann::ordered_json::parse(results.run().definitions).value(kTopK, ""));
    report.note("worse", worse_note(found));
    report.note("first_forced", first_forced_note(found));
    report.note("weak_indexers",
                weak_note(found.weak, remedy(results, o, found.layers.front().layer)));
    report.note("windows", windows_note(results, "/fit"));
    report.note(report::kIntervals, intervals_note(found));
    report.note("counted",
                concat("Held-out queries counted, those with more visible blocks than k: ",
                       found.layers.back().rows_counted, "."));
    report.note("elements", elements_text(results.run()));
    report.note("captures", captures_text(results.run()));
    return report;
}

}  // namespace msa::experiments::fit
