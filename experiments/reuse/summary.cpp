// SPDX-License-Identifier: MIT
#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "analysis/metrics.h"
#include "experiments/driver/estimate.h"
#include "experiments/driver/operands.h"
#include "experiments/driver/rows.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/sink_note.h"
#include "experiments/driver/table.h"
#include "experiments/measure/drawn.h"
#include "experiments/reuse/sharing.h"

namespace msa::experiments::reuse {
namespace {

using nlohmann::ordered_json;

constexpr int kDecimals = 4;
constexpr const char* kError = "output error";

ordered_json json_of(const Kept& kept) {
    ordered_json json;
    for (size_t m = 0; m < kMeasures; ++m) json[kMeasureNames[m]] = estimate_json(kept.measures[m]);
    return json;
}

/// Of the selections, against own ids in every layer.
Cost saved(const Findings& findings, const Shared& shared) {
    return findings.own.selection - shared.selection;
}

std::vector<int64_t> computing_layers(const Findings& findings, const LayerPattern& pattern) {
    std::vector<int64_t> layers;
    for (size_t t = 0; t < pattern.size(); ++t)
        if (pattern[t]) layers.push_back(findings.layers[t]);
    return layers;
}

ordered_json json_of(const Findings& findings, const Shared& shared) {
    ordered_json json{{"name", shared.name},
                      {"computing_layers", computing_layers(findings, shared.pattern)},
                      {"sources", ordered_json::array()}};
    for (size_t source : sources(shared.pattern))
        json["sources"].push_back(findings.layers[source]);
    json.update(json_of(shared.kept));
    json["most_lost"] = json_number(shared.most_lost);
    json["each_reaches"] = shared.each;
    json["mean_reaches"] = shared.mean;
    json["cost"] = cost_json(shared.cost);
    json["cost"]["share_of_own"] = shared.cost.seconds / findings.own.cost.seconds;
    json["cost"]["share_of_dense"] = shared.cost.seconds / findings.dense.seconds;
    json["selection_cost"] = cost_json(shared.selection);
    json["saved"] = cost_json(saved(findings, shared));
    return json;
}

template <typename T>
ordered_json optional_json(const Findings& findings, const std::optional<T>& shared) {
    return shared ? json_of(findings, *shared) : ordered_json();
}

/// A measure of what a row keeps.
template <typename Of>
ColumnOf<Of> kept(const char* heading, Measure m, Shown shown = Shown::value) {
    return {{"", heading, {.shown = shown}}, [m](const Of& row) { return row.kept[m]; }};
}

void print_distances(const Findings& findings, std::ostream& out) {
    out << "by distance in layers, mean over the pairs:\n\n";
    using Of = AtDistance;
    const std::vector<ColumnOf<Of>> columns{
        {{"", "distance"}, &Of::distance},
        {{"", "pairs"}, &Of::pairs},
        kept<Of>("mass kept", Measure::mass_kept),
        {{"", "own ids keep"}, [](const Of& row) { return row.own[Measure::mass_kept]; }},
        kept<Of>("mass lost", Measure::mass_lost, Shown::interval),
        kept<Of>("recall\nof own ids", Measure::own_recall),
        kept<Of>("recall\nof oracle", Measure::block_recall),
        kept<Of>("output error", Measure::output_error)};
    Rows(columns, findings.distances).print(out);
    out << "\nrandom blocks keep " << fixed_text(findings.floor_mass, kDecimals)
        << " of the mass, output error " << fixed_text(findings.floor_error, kDecimals)
        << "; the oracle's keep " << fixed_text(findings.oracle_mass, kDecimals) << '\n';
}

void print_patterns(const Findings& findings, std::ostream& out) {
    out << "\npatterns, mean over the layers (best of n: the least mass lost with n layers that "
           "compute):\n\n";
    using Of = const Shared&;
    const std::vector<ColumnOf<Shared>> columns{
        {{"", "pattern"}, &Shared::name},
        {{"", "compute"}, [](Of row) { return computing(row.pattern); }},
        kept<Shared>("mass lost", Measure::mass_lost, Shown::interval),
        {{"", "most lost"}, &Shared::most_lost},
        kept<Shared>("mass kept", Measure::mass_kept),
        kept<Shared>("output error", Measure::output_error),
        {{"", "selection"}, [](Of row) { return time_text(row.selection.seconds); }},
        {{"", "time"}, [](Of row) { return time_text(row.cost.seconds); }},
        {{"", "of own", {.decimals = 3}},
         [&](Of row) { return row.cost.seconds / findings.own.cost.seconds; }}};
    std::vector<Shared> all{findings.own};
    all.insert(all.end(), findings.patterns.begin(), findings.patterns.end());
    all.insert(all.end(), findings.front.begin(), findings.front.end());
    Rows(columns, all).print(out);
}

void print_best(const Findings& findings, const char* what, const std::optional<Shared>& shared,
                std::ostream& out) {
    out << "  " << what << "  ";
    if (!shared) {
        out << "no pattern\n";
        return;
    }
    const Cost less = saved(findings, *shared);
    out << computing(shared->pattern) << " of " << findings.layers.size() << " compute: layers "
        << list_text(computing_layers(findings, shared->pattern)) << '\n'
        << "                      mass lost " << text_of(shared->kept[Measure::mass_lost])
        << ", of one layer at most " << fixed_text(shared->most_lost, kDecimals) << '\n'
        << "                      saves " << time_text(less.seconds) << " of selection ("
        << number_text(less.flops / kTera) << " TFLOP, " << number_text(less.bytes / kGiga)
        << " GB), " << fixed_text(100 * (1 - shared->cost.seconds / findings.own.cost.seconds), 1)
        << " % of the attention\n";
}

}  // namespace

std::string reuse_definitions() {
    ordered_json definitions;
    for (const char* name : kMeasureNames) definitions[name] = analysis::metric(name).definition;
    definitions["distance"] = "number of the target layer less that of the source layer";
    definitions["low, high"] = std::string(measure::kIntervalsWords) + ", the same in all layers";
    definitions["most_lost"] = "mass_lost of the layer that loses most";
    definitions["each_reaches"] =
        "every layer reaches the target, with the far end of its interval";
    definitions["mean_reaches"] =
        "the mean over the layers reaches the target, with the far end of its interval";
    definitions["cost"] =
        "roofline of the layers together at the context, each for its share of the layers of the "
        "model, bf16: selection in the layers that "
        "compute ids, and attention in the fastest loop order in all; neighbouring queries are "
        "taken to choose their blocks by chance";
    definitions["selection_cost"] = "of that, selection";
    definitions["saved"] = "selection that is not done, against own ids in every layer";
    definitions["front"] =
        "for each number of layers that compute ids, the pattern of the least mean mass lost";
    definitions["each"] =
        "the fewest layers that compute ids with which every layer reaches the target, and of "
        "these patterns the one of the least mean mass lost";
    definitions["mean"] = "the first pattern of the front whose mean reaches the target";
    return definitions.dump();
}

std::string reuse_summary(const Findings& findings, const io::RunRecord& run) {
    const ReuseOptions& asked = findings.asked;
    ordered_json pairs = ordered_json::array(), distances = ordered_json::array(),
                 patterns = ordered_json::array(), front = ordered_json::array();
    for (const Pair& pair : findings.pairs) {
        pairs.push_back(
            {{"source", pair.source}, {"target", pair.target}, {"distance", pair.distance()}});
        pairs.back().update(json_of(pair.kept));
    }
    for (const AtDistance& d : findings.distances) {
        distances.push_back({{"distance", d.distance}, {"pairs", d.pairs}});
        distances.back().update(json_of(d.kept));
        distances.back()["own"] = json_of(d.own);
    }
    for (const Shared& shared : findings.patterns) patterns.push_back(json_of(findings, shared));
    for (const Shared& shared : findings.front) front.push_back(json_of(findings, shared));
    ordered_json json = begin_summary("msa-reuse-summary", run);
    json.update(ordered_json{{"target", asked.target()},
                             {"seed", findings.seed},
                             {"draws", kDraws},
                             {"is_bound", findings.is_bound},
                             {"is_extrapolated", asked.context > findings.longest_sequence},
                             {"layers", findings.layers},
                             {"missing_layers", findings.missing},
                             {"queries", findings.queries},
                             {"blocks_of_queries", findings.blocks},
                             {"sequences", findings.sequences},
                             {"references",
                              {{"random_mass_kept", json_number(findings.floor_mass)},
                               {"random_output_error", json_number(findings.floor_error)},
                               {"oracle_mass", json_number(findings.oracle_mass)}}},
                             {"pairs", pairs},
                             {"distances", distances},
                             {"own", json_of(findings, findings.own)},
                             {"patterns", patterns},
                             {"front", front},
                             {"each", optional_json(findings, findings.each)},
                             {"mean", optional_json(findings, findings.mean)},
                             {"dense", cost_json(findings.dense)}});
    json["dropped_sinks"] = findings.dropped_sinks;
    return json.dump(2) + "\n";
}

std::string nearest_text(const Findings& findings) {
    if (findings.each || findings.mean) return "";
    if (findings.front.empty()) return "attention is NaN: no pattern has a loss";
    const auto nearest = std::min_element(
        findings.front.begin(), findings.front.end(), [&](const Shared& a, const Shared& b) {
            const Measure of = findings.asked.error ? Measure::output_error : Measure::mass_lost;
            return a.kept[of].value < b.kept[of].value;
        });
    return concat("target: ", findings.asked.target_text(kError),
                  ": no pattern reaches it; the nearest is ", nearest->name, ", layers ",
                  list_text(computing_layers(findings, nearest->pattern)), ", with mass kept ",
                  text_of(nearest->kept[Measure::mass_kept]), " and output error ",
                  text_of(nearest->kept[Measure::output_error]), "; larger --top-k keeps more");
}

void print_findings(const Findings& findings, const io::RunRecord& run, std::ostream& out) {
    const ReuseOptions& asked = findings.asked;
    out << "target: " << asked.target_text(kError) << "; ids of " << asked.selector << ", Bk "
        << asked.block_size << ", k " << asked.rule.top_k << "; layers "
        << list_text(findings.layers) << '\n';
    print_paragraph(out,
                    pricing_text(asked, std::ssize(findings.layers), findings.longest_sequence));
    out << '\n';
    print_distances(findings, out);
    print_patterns(findings, out);
    out << "\nfewest layers that compute ids, within the target:\n";
    print_best(findings, "in every layer    ", findings.each, out);
    print_best(findings, "in the mean       ", findings.mean, out);
    out << '\n';
    if (!findings.missing.empty())
        print_paragraph(out,
                        "Not measured: layers " + findings.missing + ". Distances count them.");
    if (findings.is_bound)
        print_paragraph(out, asked.selector +
                                 " needs the attention that it is to spare: what it "
                                 "would cost is no saving that can be had.");
    print_paragraph(
        out, concat("Measured on ", findings.queries, " queries, the same in all layers. ",
                    measure::draws_text(findings.blocks, findings.sequences, findings.seed)));
    print_paragraph(out, concat("Costs are of bf16. ", elements_text(run)));
    print_dropped_sinks(findings.dropped_sinks, out);
    print_captures(run, out);
}

}  // namespace msa::experiments::reuse
