// SPDX-License-Identifier: MIT
// The answer of msa-compare as tables.
#include <algorithm>

#include "analysis/overlap.h"
#include "core/error.h"
#include "experiments/compare/options.h"
#include "experiments/compare/rows.h"
#include "experiments/driver/full_layers.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/measure/drawn.h"
#include "experiments/measure/sinks.h"
#include "experiments/measure/ties.h"
#include "experiments/programs.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments::compare {
namespace {

const report::Column kSetting = report::shown(report::kSetting, "setting");

auto size(const char* name) {
    return [name](const Row& row) { return row.sizes.at(name); };
}

/// A measure that has no interval.
report::ColumnOf<Row> plain(const char* name, const std::string& heading = "",
                            report::Form form = {}) {
    return {report::shown(report::metric(name), heading, form),
            [name](const Row& row) { return row.measures.at(name); }};
}

std::optional<int64_t> matched_budget(const Row& row) {
    const int64_t budget = row.sizes.at("matched_budget");
    return budget == 0 ? std::nullopt : std::optional(budget);
}

const report::Column kMatchedBudget{
    .key = "matched_budget",
    .unit = "tokens",
    .definition = "budget of the window that costs as many FLOPs as the row's scores and attention",
    .heading = "FLOP-\nmatched\nbudget",
    .null = "only --ablation window has it, and windows themselves have none"};

const report::TableOf<Row> kSelectors{
    "selectors", "what each selector keeps at each setting", 3,
    report::joined<Row>(
        {{{report::kLayer, [](const Row& row) { return row.number(); }},
          {report::kSelector, &Row::selector},
          {kSetting, &Row::setting},
          {{"family", "",
            "what the selector decides by: oracle, index branch, keys, queries or position"},
           &Row::family},
          {{"kind", "", "blocks or tokens: what the selector chooses"}, &Row::kind},
          {{"token_budget", "tokens", "tokens that a query may attend to, as asked for"},
           size("budget")},
          {report::kBlockSize, size("block_size")},
          {report::kTopK, size("top_k")},
          {report::kForcedFirst, size("forced_first")},
          {report::kForcedLocal, size("forced_local")},
          {report::hidden(kMatchedBudget), matched_budget},
          {{"tokens_allowed", "tokens",
            "tokens of as many blocks as the budget buys, forced blocks outside the budget "
            "included; a policy whose tokens_read is larger reads more than its budget"},
           size("tokens_allowed")},
          plain("blocks_kept", "blocks\nkept", {.decimals = 2}),
          plain("tokens_read", "tokens\nread", {.decimals = 1}),
          {{"is_over_budget", "", "tokens_read is larger than tokens_allowed", "over\nbudget"},
           &Row::over_budget}},
         measure::metric_columns<Row>(
             kMeasured,
             {{"mass_kept", "mass\nkept", {.shown = report::Shown::interval}},
              {"group_output_error", "error"}},
             &Row::kept),
         {{{.key = "standing",
            .unit = "",
            .definition =
                "best: keeps most mass at its setting; =: not distinguishable from the best, as "
                "the interval of behind holds 0",
            .heading = "standing",
            .null = "behind the best, or not compared: oracles, and what reads more than its "
                    "budget"},
           &Row::standing},
          {{.key = "best_selector",
            .unit = "",
            .definition = "the selector that keeps most mass at this setting, oracles and "
                          "selectors that read more than their budget apart",
            .null = "no selector is compared at this setting"},
           &Row::best_selector},
          {{"behind", "probability",
            "mass_kept of best_selector less the row's, on the same draws"},
           &Row::behind},
          plain("index_flops", "index\nkFLOP", {.decimals = 1, .per = 1000}),
          plain("index_bytes", "index\nKiB", {.decimals = 1, .per = 1024}),
          plain("attention_flops"),
          plain("attention_bytes"),
          {report::kRowsCounted, size("rows_counted")},
          {report::hidden(report::metric("dead_groups")), size("dead_groups")}}})};

/// A row beside the windows of its budget and of its FLOPs.
struct Windows {
    const Row& row;
    const Row* equal;
    const Row* matched;
};

auto mass_of(const Row* Windows::*window) {
    return [window](const Windows& of) -> std::optional<double> {
        return of.*window == nullptr ? std::nullopt : std::optional((of.*window)->mass_kept());
    };
}

auto error_of(const Row* Windows::*window) {
    return [window](const Windows& of) -> std::optional<double> {
        if (of.*window == nullptr) return std::nullopt;
        return (of.*window)->measures.at("group_output_error");
    };
}

report::Column of_window(std::string key, const char* unit, std::string definition,
                         std::string heading) {
    return {.key = std::move(key),
            .unit = unit,
            .definition = std::move(definition),
            .heading = std::move(heading),
            .null = "that window holds more than half of the longest sequence"};
}

const report::TableOf<Windows> kWindows{
    "windows",
    "selectors beside windows of the same budget and of the same FLOPs",
    3,
    {{report::kLayer, [](const Windows& of) { return of.row.number(); }},
     {report::kSelector, [](const Windows& of) { return of.row.selector; }},
     {kSetting, [](const Windows& of) { return of.row.setting; }},
     {report::shown(report::metric("mass_kept"), "mass"),
      [](const Windows& of) { return of.row.kept["mass_kept"]; }},
     {of_window("window_mass_kept", "probability", "mass_kept by a window of the same budget",
                "mass\nwindow,\nequal\nbudget"),
      mass_of(&Windows::equal)},
     {kMatchedBudget, [](const Windows& of) { return matched_budget(of.row); }},
     {of_window("matched_window_mass_kept", "probability",
                "mass_kept by the window of matched_budget", "mass\nwindow,\nequal\nFLOPs"),
      mass_of(&Windows::matched)},
     {report::shown(report::metric("group_output_error"), "error"),
      [](const Windows& of) { return of.row.kept["group_output_error"]; }},
     {of_window("window_group_output_error", "relative",
                "group_output_error of a window of the same budget",
                "error\nwindow,\nequal\nbudget"),
      error_of(&Windows::equal)},
     {of_window("matched_window_group_output_error", "relative",
                "group_output_error of the window of matched_budget",
                "error\nwindow,\nequal\nFLOPs"),
      error_of(&Windows::matched)}}};

std::vector<Windows> windows_of(const std::vector<LayerRows>& layers) {
    std::vector<Windows> all;
    for (const LayerRows& of : layers) {
        const auto window = [&](const char* variant, int64_t budget) -> const Row* {
            const auto found = std::ranges::find_if(of.rows, [&](const Row& other) {
                return other.variant() == variant && other.budget() == budget;
            });
            return found == of.rows.end() ? nullptr : &*found;
        };
        for (const Row& row : of.rows)
            if (const auto matched = matched_budget(row))
                all.push_back(
                    {row, window("equal=budget", row.budget()), window("equal=FLOPs", *matched)});
    }
    return all;
}

auto count(int64_t LayerRows::*member) {
    return [member](const LayerRows& of) { return of.*member; };
}

const report::TableOf<LayerRows> kLayers{
    "layers",
    "what was measured and checked in each layer",
    1,
    {{report::kLayer, [](const LayerRows& of) { return of.rows.front().number(); }},
     {{.key = "window",
       .unit = report::kWindow.unit,
       .definition = report::kWindow.definition,
       .heading = "sliding\nwindow",
       .null = "the layer has none"},
      &LayerRows::window},
     {{"captured_tokens", "tokens", "tokens of all sequences", "tokens"},
      count(&LayerRows::tokens)},
     {report::shown(report::kQueries, "queries"), count(&LayerRows::queries)},
     {report::shown(report::kRowsCounted, "queries\ncounted"),
      [](const LayerRows& of) { return of.rows.front().sizes.at("rows_counted"); }},
     {{"largest_budget", "tokens",
       "largest budget of the run: queries that see no more keys are not counted",
       "which see\nmore keys\nthan"},
      count(&LayerRows::largest_budget)},
     {report::kQueryBlocks, count(&LayerRows::blocks)},
     {report::kSequences, count(&LayerRows::sequences)},
     {{"rows_checked", "",
       "choices of a query and group that were found to keep no more than the best choice of as "
       "many blocks",
       "rows\nchecked"},
      count(&LayerRows::rows_checked)},
     {{"rows_with_all_blocks", "",
       "choices of all blocks, over which attention was found to be dense attention",
       "of all\nblocks"},
      count(&LayerRows::rows_with_all_blocks)},
     {{"rows_undefined", "",
       "rows where attention is undefined, NaN or an overflow in its logits: they are not counted"},
      count(&LayerRows::rows_undefined)},
     {{"largest_difference_from_dense",
       "relative",
       "largest difference of the output from dense attention where all blocks are chosen",
       "largest\ndifference\nfrom dense",
       {.decimals = -2}},
      &LayerRows::difference},
     {{"largest_mass_bound", "probability",
       "largest rounding of a mass, which the checks allow for"},
      &LayerRows::mass_bound}}};

struct Overlap {
    std::string selector, setting;
    int64_t layer, other;
    double overlap;
};

const report::TableOf<Overlap> kOverlaps{
    "layer_overlaps",
    "blocks that two layers choose for the same queries and groups",
    4,
    {{report::hidden(report::kSelector), &Overlap::selector},
     {report::hidden(report::kSetting), &Overlap::setting},
     {report::hidden(report::kLayer), &Overlap::layer},
     {{"other_layer", "", "number of another layer, behind it"}, &Overlap::other},
     {report::hidden(report::metric("layer_overlap")), &Overlap::overlap}}};

/// Of the layers whose ids are of as many groups.
std::vector<Overlap> overlaps_of(const io::ResultsReader& results) {
    std::vector<Overlap> all;
    for (const std::string& key : results.list("/metrics")) {
        const std::string group = "/select/" + key;
        if (!results.has(group)) continue;
        std::vector<std::pair<int64_t, Tensor<int32_t, 3>>> ids;
        for (const std::string& layer : results.list(group))
            ids.emplace_back(std::stoll(layer),
                             results.read<int32_t, 3>(group + "/" + layer + "/ids"));
        std::ranges::sort(ids, {}, [](const auto& of) { return of.first; });
        if (std::ranges::any_of(ids, [&](const auto& of) {
                return of.second.extent(1) != ids.front().second.extent(1);
            }))
            continue;
        for (size_t a = 0; a < ids.size(); ++a)
            for (size_t b = a + 1; b < ids.size(); ++b) {
                const std::string metrics = concat("/metrics/", key, "/", ids[a].first);
                all.push_back({results.text(metrics, "selector"), results.text(metrics, "setting"),
                               ids[a].first, ids[b].first,
                               analysis::mean_overlap(ids[a].second.view(), ids[b].second.view())});
            }
    }
    return all;
}

std::string title(const CompareOptions& o) {
    return concat(o.ablation == Ablation::none ? "" : "unless the table says otherwise: ",
                  "budgets in tokens, kept in blocks of ", o.block_size, "; one choice for each ",
                  to_string(o.sharing), "; forced first ", join(o.forced_first), " and newest ",
                  o.forced_local, " blocks ", o.forced_outside ? "outside" : "inside",
                  " the budget (policies may force more); ", o.decode ? "decode" : "prefill",
                  " phase");
}

/// The notes of all layers, each once; those that not all layers have name theirs.
std::string policies_text(const std::vector<LayerRows>& layers) {
    std::vector<std::pair<std::string, std::vector<int64_t>>> all;
    for (const LayerRows& of : layers)
        for (const std::string& note : of.notes) {
            auto at = std::ranges::find(all, note, [](const auto& one) { return one.first; });
            if (at == all.end()) at = all.insert(all.end(), {note, {}});
            at->second.push_back(of.rows.front().number());
        }
    std::string text;
    for (const auto& [note, of] : all) {
        text += (text.empty() ? "" : "\n") + note;
        if (of.size() < layers.size()) text += concat(" (", layers_text(of), ")");
    }
    return text;
}

std::string uncounted_text(const std::vector<LayerRows>& layers) {
    const bool none = std::ranges::any_of(
        layers, [](const LayerRows& of) { return of.rows.front().sizes.at("rows_counted") == 0; });
    return none ? "No query sees more keys than the largest budget: choose smaller --budgets." : "";
}

}  // namespace

std::vector<report::Shape> tables() {
    return {kLayers.shape(), kSelectors.shape(), kWindows.shape(), kOverlaps.shape(),
            measure::dropped_sinks_shape()};
}

report::Report make_report(const io::ResultsReader& results, const std::vector<LayerRows>& layers) {
    const auto o = recorded_options<CompareOptions>(results.run().options);
    std::vector<Row> rows;
    std::vector<measure::Sink> sinks;
    std::vector<measure::Tie> ties;
    std::string intervals;
    bool drawn = false;
    for (const LayerRows& of : layers) {
        rows.insert(rows.end(), of.rows.begin(), of.rows.end());
        for (const Row& row : of.rows) {
            sinks.push_back({row.number(), row.selector, row.setting,
                             row.measures.at("sink_mass_dense"),
                             row.measures.at("sink_mass_sparse")});
            if (row.kind != "tokens")
                ties.push_back({row.number(), row.selector + "@" + row.setting,
                                row.kept["tied"].value, row.kept["tied_by_rounding"].value,
                                row.kept["all_tied"].value});
        }
        const measure::DrawnBlocks from(results, "/query_blocks/" + of.layer);
        if (intervals.empty() || (!drawn && from.can_draw()))
            intervals = from.text(results.run().seed) +
                        (from.can_draw() ? " Every config sees the same draws." : "");
        drawn |= from.can_draw();
    }
    report::Report report{
        .title = title(o),
        .tables = {kLayers.of(layers), kSelectors.of(rows), kWindows.of(windows_of(layers)),
                   kOverlaps.of(overlaps_of(results))}};
    report.note(report::kIntervals, intervals);
    report.note("counted", uncounted_text(layers));
    report.note("policies", policies_text(layers));
    measure::add_dropped_sinks(sinks, report);
    report.note("ties", measure::ties_text(ties));
    report.note("windows", windows_note(results, "/layers"));
    report.note("elements", elements_text(results.run()));
    report.note("captures", captures_text(results.run()));
    return report;
}

}  // namespace msa::experiments::compare
