// SPDX-License-Identifier: MIT
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

#include "analysis/metrics.h"
#include "experiments/advise/advice.h"
#include "experiments/driver/estimate.h"
#include "experiments/driver/rows.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/sink_note.h"
#include "experiments/driver/table.h"
#include "experiments/measure/drawn.h"

namespace msa::experiments::advise {
namespace {

using nlohmann::ordered_json;

constexpr const char* kError = "group output error";

/// A setting, what it keeps on a layer or on all of them, and dense attention there.
struct Line {
    const Setting& setting;
    const Kept& kept;
    const Cost& dense;
    int64_t layer = 0;
    bool is_recommended = false;
};

/// The measure that the target is about has its interval in the table; for both a line would be
/// too long.
Rows rows_of(const AdviseOptions& asked, const std::vector<Line>& lines,
             const std::vector<ColumnOf<Line>>& before = {},
             const std::vector<ColumnOf<Line>>& after = {}) {
    using Of = const Line&;
    const auto form = [](bool is_target) {
        return Form{.shown = is_target ? Shown::interval : Shown::value};
    };
    std::vector<ColumnOf<Line>> columns = before;
    for (const ColumnOf<Line>& one : std::initializer_list<ColumnOf<Line>>{
             {{"selector", "selector"}, [](Of line) { return line.setting.selector; }},
             {{"block_size", "Bk"}, [](Of line) { return line.setting.block_size; }},
             {{"top_k", "k"}, [](Of line) { return line.setting.rule.top_k; }},
             {{"forced_first"}, [](Of line) { return line.setting.rule.forced_first; }},
             {{"forced_local"}, [](Of line) { return line.setting.rule.forced_local; }},
             {{"", "forced"},
              [](Of line) {
                  const SelectionRule& rule = line.setting.rule;
                  return concat(rule.forced_first, "+", rule.forced_local);
              }},
             {{"tokens", "tokens"}, [](Of line) { return line.setting.tokens(); }},
             {{"mass_kept", "mass\nkept", form(!asked.error)},
              [](Of line) { return line.kept.mass(); }},
             {{"group_output_error", "output\nerror", form(asked.error.has_value())},
              [](Of line) { return line.kept.error(); }},
             {{"", "time"}, [](Of line) { return time_text(line.kept.cost.seconds); }},
             {{"", "of\ndense", {.decimals = 3}},
              [](Of line) { return line.kept.cost.seconds / line.dense.seconds; }}})
        columns.push_back(one);
    columns.insert(columns.end(), after.begin(), after.end());
    return {columns, lines};
}

ordered_json json_of(const Advice& advice, size_t setting, const Kept& kept, const Cost& dense) {
    ordered_json json = rows_of(advice.asked, {{advice.settings[setting], kept, dense}}).json(0);
    json["cost"] = cost_json(kept.cost);
    json["cost"]["share_of_dense"] = kept.cost.seconds / dense.seconds;
    json["cost"]["loop_order"] = kept.order.empty() ? ordered_json() : ordered_json(kept.order);
    return json;
}

ordered_json json_of(const Advice& advice, const Choice& choice) {
    ordered_json json = json_of(advice, choice.setting, choice.kept, advice.dense);
    json["sparse_layers"] = choice.sparse;
    json["dense_layers"] = choice.dense;
    json["confidence"] = json_number(choice.confidence);
    return json;
}

ordered_json json_of(const Advice& advice, const LayerAdvice& layer) {
    ordered_json json{{"layer", layer.layer},
                      {"stays_dense", !layer.recommended.has_value()},
                      {"recommended", nullptr},
                      {"dense_cost", cost_json(layer.dense)},
                      {"blocks_of_queries", layer.blocks},
                      {"queries", layer.queries},
                      {"sequences", layer.sequences},
                      {"under_recommended", nullptr}};
    if (layer.recommended) {
        const size_t s = *layer.recommended;
        json["recommended"] = json_of(advice, s, layer.kept[s], layer.dense);
    }
    const Choice& shown = advice.recommended ? *advice.recommended : advice.nearest;
    json["under_recommended"] =
        json_of(advice, shown.setting, layer.kept[shown.setting], layer.dense);
    json["under_recommended"]["sparse"] = layer.sparse;
    return json;
}

bool is_extrapolated(const Advice& advice) {
    return advice.asked.context > advice.layers.front().longest_sequence;
}

/// What a target of mass leaves out.
std::string loss_text(const AdviseOptions& asked) {
    if (asked.error)
        return "The error is that of the attention's output in each layer, not of the model's: "
               "msalab evaluate finds what the model loses under a setting.";
    return "Mass kept is not what the model loses: a layer that stays dense here may be sparse at "
           "little loss, and mass says nothing of values and of heads that write little. Small "
           "gaps "
           "hide large losses, too: on SmolLM2-135M 0.05 less mass than the oracle cost 3.5 times "
           "its "
           "loss (docs/smollm2.md). --error weighs keys by what they change in the output; msalab "
           "evaluate finds what the model loses.";
}

void print_choice(const Advice& advice, const Choice& choice, std::ostream& out) {
    const Setting& setting = advice.settings[choice.setting];
    const Cost& cost = choice.kept.cost;
    out << "  " << setting_text(setting) << " (" << setting.tokens() << " tokens)\n"
        << "  mass kept     " << text_of(choice.kept.mass()) << '\n'
        << "  group output error  " << text_of(choice.kept.error()) << '\n'
        << "  time          " << time_text(cost.seconds) << ", dense attention "
        << time_text(advice.dense.seconds) << ": "
        << fixed_text(advice.dense.seconds / cost.seconds, 2) << " times as fast"
        << (is_extrapolated(advice) ? ", extrapolated\n" : "\n");
    if (!choice.dense.empty()) out << "  stay dense    " << layers_text(choice.dense) << '\n';
}

void print_front(const Advice& advice, std::ostream& out) {
    out << "\nPareto front of cost against "
        << (advice.asked.error ? "group output error" : "mass lost") << ", all layers sparse:\n\n";
    std::vector<Line> lines;
    for (size_t s : advice.front)
        lines.push_back({advice.settings[s], advice.all[s], advice.dense, 0,
                         advice.recommended && advice.recommended->setting == s});
    const ColumnOf<Line> mark{
        {"", " "}, [](const Line& line) { return std::string(line.is_recommended ? "*" : ""); }};
    rows_of(advice.asked, lines, {}, {mark}).print(out);
    if (advice.recommended) out << "*: recommended\n";
}

void print_layers(const Advice& advice, std::ostream& out) {
    std::vector<Line> lines;
    std::vector<int64_t> dense;
    Cost all;
    for (const LayerAdvice& layer : advice.layers) {
        if (!layer.recommended) {
            dense.push_back(layer.layer);
            all = all + layer.dense;
            continue;
        }
        all = all + layer.kept[*layer.recommended].cost;
        const size_t s = *layer.recommended;
        lines.push_back({advice.settings[s], layer.kept[s], layer.dense, layer.layer});
    }
    all = all * advice.share() + cost_of(advice.windowed);
    out << '\n';
    if (!lines.empty()) {
        out << "Each layer's own " << (advice.asked.budget ? "best" : "cheapest")
            << " setting that reaches the target:\n\n";
        rows_of(advice.asked, lines, {{{"", "layer"}, &Line::layer}}).print(out);
        if (advice.layers.size() > 1)
            out << "together " << time_text(all.seconds) << ", "
                << fixed_text(all.seconds / advice.dense.seconds, 3) << " of dense attention\n";
    }
    if (!dense.empty())
        out << "Stay dense, as no setting reaches the target at a lower cost: "
            << layers_text(dense) << '\n';
}

std::string sampling_text(const Advice& advice) {
    const LayerAdvice& first = advice.layers.front();
    return concat("Mass and error are of ", first.queries,
                  " queries in blocks of neighbouring ones, of "
                  "sequences of at most ",
                  first.longest_sequence, " tokens. ",
                  measure::draws_text(first.blocks, first.sequences, advice.seed));
}

}  // namespace

std::string advise_definitions() {
    ordered_json definitions;
    for (const char* name : {"mass_kept", "group_output_error"})
        definitions[name] = analysis::metric(name).definition;
    definitions["cost"] =
        "roofline of the layers together at the context, each for its share of the layers of the "
        "model, or of one layer, bf16: selection and attention in the fastest loop order; the "
        "union of a tile is the measured one where the queries of a "
        "block are neighbours; layers with a sliding window keep it, at their own cost";
    definitions["low, high"] = measure::kIntervalsWords;
    definitions["recommended"] =
        "under keep and error, the lowest cost of all layers; a layer is sparse where the far end "
        "of its interval reaches the target and dense attention costs more; under budget, the most "
        "mass within it. Mass and error are means over the sparse layers, costs of all layers";
    definitions["target"] =
        "a share of attention mass, or an error of the attention's output; neither is what the "
        "model loses: mass does not weigh keys by what they change in the output, error does";
    definitions["confidence"] = "share of the draws in which every sparse layer reaches the target";
    definitions["front"] =
        "settings that no other one matches in loss at the same cost or less, all layers sparse";
    definitions["bound"] =
        "fewest tokens at which the oracle reaches the target: what an Index Branch that is fitted "
        "to these layers can reach at best";
    return definitions.dump();
}

std::string advise_summary(const Advice& advice, const io::RunRecord& run) {
    const AdviseOptions& asked = advice.asked;
    ordered_json front = ordered_json::array(), layers = ordered_json::array(),
                 settings = ordered_json::array();
    for (size_t s : advice.front) front.push_back(json_of(advice, s, advice.all[s], advice.dense));
    for (const LayerAdvice& layer : advice.layers) layers.push_back(json_of(advice, layer));
    for (size_t s = 0; s < advice.settings.size(); ++s) {
        settings.push_back(json_of(advice, s, advice.all[s], advice.dense));
        settings.back()["is_bound"] = is_bound(advice.settings[s]);
    }
    ordered_json json = begin_summary("msa-advise-summary", run);
    json.update(ordered_json{{"target", asked.target()},
                             {"seed", advice.seed},
                             {"draws", kDraws},
                             {"recommended", nullptr},
                             {"nearest", nullptr},
                             {"is_extrapolated", is_extrapolated(advice)},
                             {"why_none", nullptr},
                             {"bound", nullptr},
                             {"dense", cost_json(advice.dense)},
                             {"windowed", windowed_table(advice.windowed).json()["rows"]},
                             {"front", front},
                             {"layers", layers},
                             {"settings", settings}});
    if (advice.recommended) {
        json["recommended"] = json_of(advice, *advice.recommended);
    } else {
        json["nearest"] = json_of(advice, advice.nearest);
        json["why_none"] = advice.why_none;
    }
    if (advice.bound)
        json["bound"] = json_of(advice, *advice.bound, advice.all[*advice.bound], advice.dense);
    json["dropped_sinks"] = advice.dropped_sinks;
    return json.dump(2) + "\n";
}

std::string nearest_text(const Advice& advice) {
    if (advice.recommended) return "";
    const Choice& nearest = advice.nearest;
    return concat("target: ", advice.asked.target_text(kError), ": ", advice.why_none,
                  "; the nearest is ", setting_text(advice.settings[nearest.setting]),
                  ", with mass kept ", text_of(nearest.kept.mass()), ", group output error ",
                  text_of(nearest.kept.error()), ", ", time_text(nearest.kept.cost.seconds),
                  " (dense attention ", time_text(advice.dense.seconds), ")");
}

void print_advice(const Advice& advice, const io::RunRecord& run, std::ostream& out) {
    const AdviseOptions& asked = advice.asked;
    const int64_t longest = advice.layers.front().longest_sequence;
    print_paragraph(out, concat("target: ", asked.target_text(kError), "; ",
                                pricing_text(asked, std::ssize(advice.layers), longest)));
    out << '\n';
    if (advice.recommended) {
        out << "recommended:\n";
        print_choice(advice, *advice.recommended, out);
        if (std::isnan(advice.recommended->confidence))
            out << "  sure          too few blocks of queries for an interval\n";
        else
            out << "  sure          every sparse layer reaches the target in "
                << fixed_text(100 * advice.recommended->confidence, 1) << " % of the draws\n";
    } else {
        out << advice.why_none << "; the nearest:\n";
        print_choice(advice, advice.nearest, out);
    }
    if (advice.bound)
        out << "  at best       the oracle reaches it with "
            << setting_text(advice.settings[*advice.bound]) << '\n';
    print_front(advice, out);
    print_layers(advice, out);
    out << '\n';
    print_paragraph(out,
                    "Forced: oldest + newest blocks that every query keeps. The intervals of "
                    "mass and error both are in summary.json.");
    print_paragraph(out, loss_text(asked));
    print_paragraph(out, sampling_text(advice));
    if (is_extrapolated(advice))
        print_paragraph(out,
                        "The context is longer than what was captured: costs are of the "
                        "context, mass and error of the capture. At the same k a longer "
                        "context keeps less.");
    if (!advice.windowed.empty()) print_paragraph(out, windowed_note(advice.windowed));
    print_paragraph(out, concat("Operands of FILE in ", run.element, "; costs are of bf16."));
    print_dropped_sinks(advice.dropped_sinks, out);
    print_captures(run, out);
}

}  // namespace msa::experiments::advise
