// SPDX-License-Identifier: MIT
// The answer of msa-advise as tables.
#include <cmath>

#include "experiments/advise/advice.h"
#include "experiments/driver/run_record.h"
#include "experiments/programs.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments::advise {
namespace {

using report::Column, report::ColumnOf, report::Form, report::Shown;

constexpr const char* kError = "group output error";
constexpr Form kTime{.words = time_text};
constexpr const char* kRoles[] = {"recommended", "nearest", "front", "bound"};

/// Some rows have a setting, what it keeps, what it costs, and what dense attention costs there.
template <typename Row>
std::vector<ColumnOf<Row>> setting_columns() {
    const auto rule = [](auto SelectionRule::*part) {
        return [part](const Row& row) { return row.setting->rule.*part; };
    };
    return {{report::kSelector, [](const Row& row) { return row.setting->selector; }},
            {report::shown(report::kBlockSize, "Bk"),
             [](const Row& row) { return row.setting->block_size; }},
            {report::shown(report::kTopK, "k"), rule(&SelectionRule::top_k)},
            {report::shown(report::kForcedFirst, "old"), rule(&SelectionRule::forced_first)},
            {report::shown(report::kForcedLocal, "new"), rule(&SelectionRule::forced_local)},
            {{"budget", "tokens", "tokens of a full choice, block_size * top_k"},
             [](const Row& row) { return row.setting->tokens(); }}};
}

template <typename Row>
std::vector<ColumnOf<Row>> metric_columns() {
    return measure::metric_columns<Row>(
        kMeasured,
        {{"mass_kept", "mass kept\n(at least)", {.shown = Shown::low}},
         {"group_output_error", "error\n(at most)", {.shown = Shown::high}}},
        [](const Row& row) -> const measure::NumbersByMetric& { return *row.kept; });
}

constexpr const char* kLayersDiffer = "the layers have different ones";

template <typename Row>
ColumnOf<Row> order_column() {
    return {{.key = "loop_order",
             .unit = "",
             .definition = "fastest loop order of attention, after which time is counted",
             .null = kLayersDiffer},
            [](const Row& row) {
                const std::string& order = row.kept->order;
                return order.empty() ? std::nullopt : std::optional(order);
            }};
}

/// Of a row that is about all layers.
template <typename Row>
std::vector<ColumnOf<Row>> cost_columns() {
    return {{report::shown(report::kSeconds, "time", kTime),
             [](const Row& row) { return row.kept->cost.seconds; }},
            {report::kFlops, [](const Row& row) { return row.kept->cost.flops; }},
            {report::kBytes, [](const Row& row) { return row.kept->cost.bytes; }},
            {report::shown(report::kShareOfDense, "of\ndense", {.decimals = 3}),
             [](const Row& row) { return row.kept->cost.seconds / row.dense->seconds; }},
            order_column<Row>()};
}

/// Of a row about a layer.
template <typename Row>
std::vector<ColumnOf<Row>> layer_cost_columns() {
    return {{{"seconds_of_layer", "s", "seconds, of this layer alone", "time", kTime},
             [](const Row& row) { return row.kept->cost.seconds; }},
            {{"flops_of_layer", "FLOP", "flops, of this layer alone"},
             [](const Row& row) { return row.kept->cost.flops; }},
            {{"bytes_of_layer", "B", "bytes, of this layer alone"},
             [](const Row& row) { return row.kept->cost.bytes; }},
            {{"share_of_dense_layer",
              "1",
              "seconds_of_layer, relative to dense attention in this layer",
              "of\ndense",
              {.decimals = 3}},
             [](const Row& row) { return row.kept->cost.seconds / row.dense->seconds; }},
            order_column<Row>()};
}

/// A setting for all layers.
struct Line {
    const Setting* setting = nullptr;
    const SettingNumbers* kept = nullptr;
    const Cost* dense = nullptr;
};
/// A setting that is singled out, with the layers that are sparse under it.
struct Plan : Line {
    Role role = Role::front;
    std::vector<int64_t> sparse = {}, dense_layers = {};
    double confidence = NAN;
};
/// A setting on a layer.
struct OfLayer : Line {
    const LayerAdvice* layer = nullptr;
};

const report::TableOf<Plan> kAdvice{
    "advice", "settings that are singled out, by cost", 6,
    report::joined<Plan>(
        {{{{"setting_role", "",
            "why the setting is here. recommended: under --keep and --error the lowest cost of all "
            "layers, where a layer is sparse if the far end of its interval reaches the target and "
            "dense attention costs more; under --budgets the most mass within it. nearest: where "
            "nothing is recommended. front: no other setting matches its loss at the same cost or "
            "less, all layers sparse. bound: the fewest tokens with which the oracle reaches the "
            "target, all layers sparse, which is the best that a fitted Index Branch can reach",
            "role"},
           [](const Plan& row) { return kRoles[static_cast<size_t>(row.role)]; }}},
         setting_columns<Plan>(),
         metric_columns<Plan>(),
         cost_columns<Plan>(),
         {{{"sparse_layers", "",
            "layers that are sparse under the setting, divided by spaces; what is kept is the mean "
            "over these, cost is of all layers"},
           [](const Plan& row) { return join(row.sparse, " "); }},
          {{"dense_layers", "", "the layers that stay dense, likewise"},
           [](const Plan& row) { return join(row.dense_layers, " "); }},
          {{"confidence", "1",
            "share of the draws of the bootstrap in which every sparse layer reaches the target; "
            "of the setting recommended, or nearest"},
           &Plan::confidence}}})};

const report::TableOf<Line> kSettings{
    "settings", "all settings tried, all layers sparse", 5,
    report::hidden(report::joined<Line>(
        {setting_columns<Line>(),
         {{report::kIsBound, [](const Line& row) { return is_bound(*row.setting); }}},
         metric_columns<Line>(),
         cost_columns<Line>()}))};

const report::TableOf<OfLayer> kOwnSettings{
    "own_settings",
    "each layer's own setting that reaches the target: the cheapest, under --budgets that of the "
    "most mass; layers that stay dense have none",
    1,
    report::joined<OfLayer>(
        {{{report::kLayer, [](const OfLayer& row) { return row.layer->layer; }}},
         setting_columns<OfLayer>(),
         metric_columns<OfLayer>(),
         layer_cost_columns<OfLayer>()})};

const report::TableOf<OfLayer> kLayers{
    "layers", "each layer under the setting recommended, or nearest", 1,
    report::hidden(report::joined<OfLayer>(
        {{{report::kLayer, [](const OfLayer& row) { return row.layer->layer; }},
          {{"is_sparse", "", "sparse under the setting recommended"},
           [](const OfLayer& row) { return row.layer->sparse; }},
          {{"stays_dense", "",
            "no setting reaches the target at a lower cost than dense attention"},
           [](const OfLayer& row) { return !row.layer->recommended.has_value(); }},
          {report::kQueries, [](const OfLayer& row) { return row.layer->queries; }},
          {report::kQueryBlocks, [](const OfLayer& row) { return row.layer->blocks; }},
          {report::kSequences, [](const OfLayer& row) { return row.layer->sequences; }}},
         metric_columns<OfLayer>(),
         layer_cost_columns<OfLayer>(),
         {{{"dense_seconds_of_layer", "s", "dense attention in this layer, of seconds_of_layer"},
           [](const OfLayer& row) { return row.dense->seconds; }},
          {{"dense_flops_of_layer", "FLOP", "the same of flops_of_layer"},
           [](const OfLayer& row) { return row.dense->flops; }},
          {{"dense_bytes_of_layer", "B", "the same of bytes_of_layer"},
           [](const OfLayer& row) { return row.dense->bytes; }}}}))};

bool is_extrapolated(const Advice& advice) {
    return advice.asked.context > advice.layers.front().longest_sequence;
}
std::vector<int64_t> layers_of(const Advice& advice) {
    std::vector<int64_t> all;
    for (const LayerAdvice& layer : advice.layers) all.push_back(layer.layer);
    return all;
}

const report::TableOf<Advice> kRun{
    "measured",
    "what was measured, and dense attention",
    0,
    {{report::kMeasuredLayers, [](const Advice& all) { return join(layers_of(all), " "); }},
     {report::kIsExtrapolated, is_extrapolated},
     {report::kDenseSeconds, [](const Advice& all) { return all.dense.seconds; }},
     {report::kDenseFlops, [](const Advice& all) { return all.dense.flops; }},
     {report::kDenseBytes, [](const Advice& all) { return all.dense.bytes; }}}};

const Choice& shown(const Advice& advice) {
    return advice.recommended ? *advice.recommended : advice.nearest;
}

std::vector<Plan> plans(const Advice& advice) {
    const Choice& choice = shown(advice);
    std::vector<Plan> all{{{&advice.settings[choice.setting], &choice.kept, &advice.dense},
                           advice.recommended ? Role::recommended : Role::nearest,
                           choice.sparse,
                           choice.dense,
                           choice.confidence}};
    const auto add = [&](Role role, size_t s) {
        all.push_back(
            {{&advice.settings[s], &advice.all[s], &advice.dense}, role, layers_of(advice)});
    };
    for (size_t s : advice.front) add(Role::front, s);
    if (advice.bound) add(Role::bound, *advice.bound);
    return all;
}

std::vector<Line> lines(const Advice& advice) {
    std::vector<Line> all;
    for (size_t s = 0; s < advice.settings.size(); ++s)
        all.push_back({&advice.settings[s], &advice.all[s], &advice.dense});
    return all;
}

OfLayer on_layer(const Advice& advice, const LayerAdvice& layer, size_t s) {
    return {{&advice.settings[s], &layer.kept[s], &layer.dense}, &layer};
}

/// What a target of mass leaves out.
std::string loss_text(const AdviseOptions& asked) {
    const std::string bits =
        "No mean over layers foretells the bits that a model loses under a setting "
        "(docs/models.md): msalab evaluate finds them.";
    if (asked.error)
        return "The error is that of the attention's output in each layer, not of the model's. " +
               bits;
    return "Mass kept is not what the model loses: a layer that stays dense here may be sparse at "
           "little loss, and mass says nothing of values and of heads that write little. Small "
           "gaps hide large losses, too: on SmolLM2-135M 0.05 less mass than the oracle cost 3.5 "
           "times its loss (docs/smollm2.md). --error weighs keys by what they change in the "
           "output. " +
           bits;
}

std::string recommended_text(const Advice& advice) {
    const Choice& choice = *advice.recommended;
    const Setting& setting = advice.settings[choice.setting];
    const Cost& cost = choice.kept.cost;
    std::string text = concat("recommended: ", setting_text(setting), " (", setting.tokens(),
                              " tokens)\nmass kept ", text_of(choice.kept.mass()), ", ", kError,
                              " ", text_of(choice.kept.error()), "\ntime ", time_text(cost.seconds),
                              ", dense attention ", time_text(advice.dense.seconds), ": ",
                              fixed_text(advice.dense.seconds / cost.seconds, 2), " times as fast",
                              is_extrapolated(advice) ? ", extrapolated" : "");
    if (!choice.dense.empty()) text += "\nstay dense: " + layers_text(choice.dense);
    if (std::isnan(choice.confidence))
        return text + "\nsure: too few blocks of queries for an interval";
    return text + concat("\nsure: every sparse layer reaches the target in ",
                         fixed_text(100 * choice.confidence, 1), " % of the draws");
}

std::string nearest_text(const Advice& advice) {
    const Choice& nearest = advice.nearest;
    return concat("target: ", advice.asked.target_text(kError), ": ", advice.why_none,
                  "; the nearest is ", setting_text(advice.settings[nearest.setting]),
                  ", with mass kept ", text_of(nearest.kept.mass()), ", ", kError, " ",
                  text_of(nearest.kept.error()), ", ", time_text(nearest.kept.cost.seconds),
                  " (dense attention ", time_text(advice.dense.seconds), ")");
}

/// What the layers cost with settings of their own, and which have none.
std::string own_text(const Advice& advice) {
    std::vector<int64_t> dense;
    Cost all;
    for (const LayerAdvice& layer : advice.layers) {
        all = all + (layer.recommended ? layer.kept[*layer.recommended].cost : layer.dense);
        if (!layer.recommended) dense.push_back(layer.layer);
    }
    all = all * advice.share() + cost_of(advice.windowed);
    std::string text;
    if (dense.size() < advice.layers.size() && advice.layers.size() > 1)
        text = concat("Each layer with its own setting: together ", time_text(all.seconds), ", ",
                      fixed_text(all.seconds / advice.dense.seconds, 3), " of dense attention.");
    if (dense.empty()) return text;
    return concat(
        text, text.empty() ? "" : "\n",
        "Stay dense, as no setting reaches the target at a lower cost: ", layers_text(dense), ".");
}

void add_notes(const Advice& advice, const io::RunRecord& run, report::Report& report) {
    const LayerAdvice& first = advice.layers.front();
    if (advice.bound)
        report.note("bound", concat("At best, the oracle reaches the target with ",
                                    setting_text(advice.settings[*advice.bound]), "."));
    report.note("own_settings", own_text(advice));
    report.note("brackets",
                "In brackets: the far end of the 95 % interval, which is held against the target. "
                "Old and new: the oldest and newest blocks that every query keeps.");
    report.note("loss", loss_text(advice.asked));
    report.note(report::kIntervals,
                concat("Mass and error are of ", first.queries,
                       " queries per layer, of sequences "
                       "of at most ",
                       first.longest_sequence, " tokens. ",
                       measure::draws_text(first.blocks, first.sequences, advice.seed)));
    if (is_extrapolated(advice))
        report.note("is_extrapolated",
                    "The context is longer than what was captured: costs are of the context, mass "
                    "and error of the capture. At the same k a longer context keeps less.");
    report.note("windowed", windowed_note(advice.windowed));
    report.note("elements", concat("Operands of FILE in ", run.element, "; costs are of bf16."));
}

}  // namespace

std::vector<report::Shape> tables() {
    return {kAdvice.shape(),
            kOwnSettings.shape(),
            kLayers.shape(),
            kSettings.shape(),
            kRun.shape(),
            windowed_shape(),
            measure::dropped_sinks_shape()};
}

report::Report make_report(const io::ResultsReader& results) {
    const Advice advice = make_advice(results);
    const AdviseOptions& asked = advice.asked;
    std::vector<OfLayer> own, layers;
    for (const LayerAdvice& layer : advice.layers) {
        if (layer.recommended) own.push_back(on_layer(advice, layer, *layer.recommended));
        layers.push_back(on_layer(advice, layer, shown(advice).setting));
    }
    report::Report report{
        .title = concat(
            "target: ", asked.target_text(kError), "; ",
            pricing_text(asked, std::ssize(advice.layers), advice.layers.front().longest_sequence)),
        .tables = {kAdvice.of(plans(advice)), kOwnSettings.of(own), kLayers.of(layers),
                   kSettings.of(lines(advice)), kRun.of(advice), windowed_table(advice.windowed)},
        .verdict = {advice.recommended.has_value(),
                    advice.recommended ? recommended_text(advice) : nearest_text(advice)}};
    add_notes(advice, results.run(), report);
    measure::add_dropped_sinks(advice.sinks, report);
    report.note("captures", captures_text(results.run()));
    return report;
}

}  // namespace msa::experiments::advise
