// SPDX-License-Identifier: MIT
#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "analysis/metrics.h"
#include "experiments/driver/estimate.h"
#include "experiments/driver/rows.h"
#include "experiments/driver/run.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/sink_note.h"
#include "experiments/driver/table.h"
#include "experiments/measure/drawn.h"
#include "experiments/precision/findings.h"
#include "experiments/precision/options.h"

namespace msa::experiments::precision {
namespace {

using nlohmann::ordered_json;

ordered_json json_of(const Part& part, const Kept& kept) {
    ordered_json json;
    for (size_t m = 0; m < part.measures.size(); ++m)
        json[part.measures[m]] = estimate_json(kept.measures[m]);
    return json;
}

/// A measure as a column of a part's table: its heading, and which end of the interval stands
/// beside the mean, if any: the one that a target is held against.
struct Heading {
    const char *measure, *words;
    Shown shown = Shown::value;
};

/// The rows of a part: in files with all measures, in the table with those that have a heading.
Rows rows_of(const Part& part, const std::vector<Heading>& headings = {}) {
    using Of = const Row&;
    std::vector<ColumnOf<Row>> columns{
        {{"name"}, &Row::name},
        {{"format", "format"}, [](Of row) { return to_string(row.precision.format); }}};
    const auto add = [&](std::vector<ColumnOf<Row>> more) {
        columns.insert(columns.end(), more.begin(), more.end());
    };
    if (part.of_weights)
        add({{{"product", "product"},
              [](Of row) {
                  return to_string(row.rounded_product ? row.precision.format
                                                       : NumberFormat::float32);
              }},
             {{"asked"}, &Row::asked},
             {{"bits_per_weight", "bits\nper\nweight", {.decimals = -6}}, &Row::bits}});
    else
        add({{{"scale", "scale"}, [](Of row) { return to_string(row.precision.unit); }},
             {{"rotated"}, [](Of row) { return row.precision.rotated; }},
             {{"", "rotation"},
              [](Of row) { return std::string(row.precision.rotated ? kHadamard : "none"); }},
             {{"asked"}, &Row::asked},
             {{"bits_per_token", "bits\nper\ntoken", {.decimals = -6}}, &Row::bits},
             {{"bits_per_value"}, &Row::bits_per_value}});
    add({{{"computed_in"}, &Row::computed_in}});
    const auto mean = [](size_t m) { return [m](Of row) { return row.mean.measures[m]; }; };
    for (size_t m = 0; m < part.measures.size(); ++m)
        columns.push_back({{part.measures[m]}, mean(m)});
    for (const Heading& of : headings) {
        const auto found = std::ranges::find(part.measures, of.measure);
        if (found != part.measures.end())
            columns.push_back({{"", of.words, {.shown = of.shown}},
                               mean(static_cast<size_t>(found - part.measures.begin()))});
    }
    columns.push_back(
        {{"worst_layer", "worst\nlayer"}, [&](Of row) { return part.worst_layer(row); }});
    columns.push_back({{"reaches", "within\ntarget"}, &Row::reaches});
    return {columns, part.rows};
}

ordered_json json_of(const Part& part) {
    ordered_json rows = rows_of(part).json();
    for (size_t r = 0; r < rows.size(); ++r) {
        rows[r]["layers"] = ordered_json::array();
        for (size_t l = 0; l < part.layers.size(); ++l) {
            rows[r]["layers"].push_back({{"layer", part.layers[l]}});
            rows[r]["layers"].back().update(json_of(part, part.rows[r].layers[l]));
        }
    }
    return {{"layers", part.layers},
            {"measures", part.measures},
            {"rows", rows},
            {"recommended", part.recommended ? ordered_json(*part.recommended) : ordered_json()},
            {"nearest", part.nearest}};
}

void print_part(const Part& part, const std::vector<Heading>& headings, std::ostream& out) {
    rows_of(part, headings).print(out);
    out << '\n';
}

/// "mass share 0.9990 [0.9980, 0.9995], recall share ..."
std::string reached_text(const Part& part, const Row& row) {
    std::string all;
    for (size_t m : part.targeted) {
        std::string name = part.measures[m];
        std::replace(name.begin(), name.end(), '_', ' ');
        all += concat(all.empty() ? "" : ", ", name, ' ', text_of(row.mean.measures[m]));
    }
    return all;
}

void print_recommended(const Part& part, std::ostream& out) {
    out << "  " << part.words << ", " << part.target_text() << ":\n      ";
    if (!part.recommended) {
        out << "no format; the nearest is " << part.rows[part.nearest].name() << '\n';
        return;
    }
    const Row& row = part.rows[*part.recommended];
    out << row.name() << ", " << number_text(row.bits, 6)
        << (part.of_weights
                ? " bits per weight"
                : concat(" bits per token (", fixed_text(row.bits_per_value, 2), " per value)"))
        << "\n      " << reached_text(part, row) << '\n';
}

/// "e4m3, f16"; formats whose values are there in f32 alone.
std::string simulated(const Part& part) {
    std::vector<std::string> names;
    for (const Row& row : part.rows) {
        const std::string name = to_string(row.precision.format);
        if (row.computed_in == name || std::find(names.begin(), names.end(), name) != names.end())
            continue;
        names.push_back(name);
    }
    return join(names);
}

void print_simulated(const Findings& findings, const std::string& backend, std::ostream& out) {
    const std::string cache = simulated(findings.cache),
                      index = findings.index ? simulated(*findings.index) : "";
    const auto print = [&](const std::string& words, const std::string& names) {
        if (names.empty()) return;
        print_paragraph(out,
                        concat(words, " in ", names,
                               ": the values that the format holds, computed in f32 for want of a "
                               "kernel of backend ",
                               backend,
                               " that reads the operands so; computed_in in summary.json "
                               "says which rows."));
    };
    if (index == cache && findings.index)
        return print(findings.index->words + " and " + findings.cache.words, cache);
    if (findings.index) print(findings.index->words, index);
    print(findings.cache.words, cache);
}

}  // namespace

std::string precision_definitions() {
    ordered_json definitions{
        {"precision_recall", analysis::metric("precision_recall").definition},
        {"block_recall", analysis::metric("block_recall").definition},
        {"mass_kept",
         concat(analysis::metric("mass_kept").definition,
                "; of the cache: of the ids that an oracle selects that sees the stored "
                "keys")}};
    for (const char* name : {"mass_share", "recall_share", "output_error", "dense_error",
                             "sparse_error", "bits_per_token", "bits_per_value"})
        definitions[name] = analysis::metric(name).definition;
    definitions["low, high"] = std::string(measure::kIntervalsWords) + ", the same in all layers";
    definitions["worst_layer"] =
        "the targeted measure that is worst in the mean, in the layer where it is worst";
    definitions["reaches"] =
        "the targeted measures, means over the layers, reach the target with the far ends of their "
        "intervals";
    definitions["recommended"] =
        "the row asked for with the fewest bits that reaches, and of these the best";
    definitions["nearest"] = "the row asked for whose worst targeted measure is best";
    definitions["computed_in"] = "the type in which the backend's kernel had these values";
    definitions["full precision"] =
        "the values of the file, computed in f32; with --indexer, index operands are x projected "
        "in f32";
    definitions["projections"] =
        "w_q and w_k in the format, without a scale; products of the unchanged x with them, summed "
        "in f32; then norm and RoPE in f32. The operands that come out are not rounded";
    definitions["product"] =
        "what a product of the projections is rounded to before norm and RoPE; f32: it is not";
    definitions["bits_per_weight"] = "bits of a value of w_q and w_k";
    return definitions.dump();
}

std::string precision_summary(const Findings& findings, const io::RunRecord& run) {
    ordered_json json = begin_summary("msa-precision-summary", run);
    json.update(ordered_json{
        {"target", {{"keep", findings.asked.keep}, {"error", findings.asked.error}}},
        {"seed", findings.seed},
        {"draws", kDraws},
        {"queries", findings.queries},
        {"blocks_of_queries", findings.blocks},
        {"sequences", findings.sequences},
        {"index", findings.index ? json_of(*findings.index) : ordered_json()},
        {"projections", findings.projections ? json_of(*findings.projections) : ordered_json()},
        {"cache", json_of(findings.cache)}});
    json["dropped_sinks"] = findings.dropped_sinks;
    return json.dump(2) + "\n";
}

std::string nearest_text(const Findings& findings) {
    std::string all;
    const auto add = [&](const Part& part) {
        if (part.recommended) return;
        const Row& row = part.rows[part.nearest];
        all += concat(all.empty() ? "" : "; ", part.words, ", target ", part.target_text(),
                      ": no format asked for reaches it; the nearest is ", row.name(), ", with ",
                      reached_text(part, row));
    };
    if (findings.index) add(*findings.index);
    if (findings.projections) add(*findings.projections);
    add(findings.cache);
    return all;
}

void print_findings(const Findings& findings, const io::RunRecord& run, std::ostream& out) {
    const auto o = recorded_options<PrecisionOptions>(run.options);
    const std::vector<Heading> of_ids{
        {"precision_recall", "recall\nof f32\nids", Shown::value},
        {"recall_share", "recall of\noracle / f32\n(at least)", Shown::low},
        {"mass_share", "mass kept / f32\n(at least)", Shown::low},
        {"output_error", "output\nerror", Shown::value}};
    out << "Bk " << o.block_size << ", k " << o.rule.top_k << "; mean over "
        << layers_text(findings.cache.layers) << "\n\n";
    if (findings.index) {
        out << "index operands: index_q and index_k in the format, bits of index_k";
        if (findings.index->layers != findings.cache.layers)
            out << "; " << layers_text(findings.index->layers);
        out << "\n\n";
        print_part(*findings.index, of_ids, out);
    }
    if (findings.projections) {
        out << "index projections: w_q and w_k in the format, products in f32 or rounded to it\n\n";
        print_part(*findings.projections, of_ids, out);
    }
    out << "KV cache: K and V in the format\n\n";
    print_part(findings.cache,
               {{"dense_error", "dense error\n(at most)", Shown::high},
                {"sparse_error", "sparse error\n(at most)", Shown::high},
                {"mass_share", "mass of\noracle / f32", Shown::value}},
               out);
    print_paragraph(out,
                    "In brackets: the far end of the 95 % interval, which is held against the "
                    "target. summary.json has both ends, and bits per value.");
    if (!findings.index)
        print_paragraph(
            out,
            "No layer has an Index Branch: its operands are not measured, nor is sparse "
            "attention. msa-fit-indexer makes them.");
    print_simulated(findings, o.backend, out);
    print_paragraph(out,
                    concat("Measured on ", findings.queries, " queries per layer. ",
                           measure::draws_text(findings.blocks, findings.sequences, findings.seed),
                           " Operands are stored in ", run.element, '.'));
    print_dropped_sinks(findings.dropped_sinks, out);
    print_captures(run, out);
    out << "\ncheapest within the target, mean over the layers:\n";
    if (findings.index) print_recommended(*findings.index, out);
    if (findings.projections) print_recommended(*findings.projections, out);
    print_recommended(findings.cache, out);
}

}  // namespace msa::experiments::precision
