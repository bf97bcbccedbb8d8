// SPDX-License-Identifier: MIT
// The answer of msa-precision as tables.
#include <algorithm>

#include "experiments/driver/full_layers.h"
#include "experiments/driver/run_record.h"
#include "experiments/precision/findings.h"
#include "experiments/programs.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments::precision {
namespace {

using report::Column, report::ColumnOf, report::Shown;

/// A row on one layer.
struct OfLayer {
    std::string precision;
    int64_t layer = 0;
    const NumbersByMetric* kept = nullptr;
};
const NumbersByMetric& kept_of(const Row& row) { return row.mean; }
const NumbersByMetric& kept_of(const OfLayer& row) { return *row.kept; }

/// The numbers of ids, and those of the cache: of its ids, that is, and of attention to all keys.
template <typename Of>
std::vector<ColumnOf<Of>> of_ids() {
    return measure::metric_columns<Of>(
        {},
        {{"precision_recall", "recall\nof f32\nids"},
         {"block_recall"},
         {"mass_kept"},
         {"mass_share", "mass kept / f32\n(at least)", {.shown = Shown::low}},
         {"recall_share", "recall of\noracle / f32\n(at least)", {.shown = Shown::low}},
         {"output_error", "output\nerror"}},
        [](const Of& row) -> const NumbersByMetric& { return kept_of(row); });
}
template <typename Of>
std::vector<ColumnOf<Of>> of_cache() {
    std::vector<ColumnOf<Of>> columns = measure::metric_columns<Of>(
        {.attention = false},
        {{"dense_error", "dense error\n(at most)", {.shown = Shown::high}},
         {"mass_kept"},
         {"mass_share", "mass of\noracle / f32"}},
        [](const Of& row) -> const NumbersByMetric& { return kept_of(row); });
    Column sparse = report::shown(report::metric("sparse_error"), "sparse error\n(at most)",
                                  {.shown = Shown::high});
    sparse.null = "some layer has no Index Branch, so that it has no sparse attention";
    columns.push_back({sparse, [](const Of& row) {
                           const NumbersByMetric& kept = kept_of(row);
                           return kept.has("sparse_error") ? std::optional(kept["sparse_error"])
                                                           : std::nullopt;
                       }});
    return columns;
}

const Column kPrecision{
    "precision", "",
    "name of the precision: the format with its scale, rotation or rounded product. f32 is full "
    "precision: the values of the file, computed in f32; with --indexer, index operands are x "
    "projected in f32"};

template <typename Of>
void append(std::vector<ColumnOf<Of>>& to, const std::vector<ColumnOf<Of>>& more) {
    to.insert(to.end(), more.begin(), more.end());
}

std::vector<ColumnOf<Row>> stored_columns() {
    return {{{"scale", "", "values of a head that share a scale", "scale"},
             [](const Row& row) { return to_string(row.precision.unit); }},
            {{"rotated", "", "channels of each head are rotated before they are stored", "rotated"},
             [](const Row& row) { return row.precision.rotated; }},
            {report::shown(report::metric("bits_per_token"), "bits\nper\ntoken", {.decimals = -6}),
             &Row::bits},
            {report::hidden(report::metric("bits_per_value")), &Row::bits_per_value}};
}

std::vector<ColumnOf<Row>> projected_columns() {
    return {
        {{"product", "",
          "what a product of the unchanged x with w_q and w_k in the format, summed in f32, is "
          "rounded to before norm and RoPE in f32; f32: it is not. The operands that come out are "
          "not rounded",
          "product"},
         [](const Row& row) {
             return to_string(row.rounded_product ? row.precision.format : NumberFormat::float32);
         }},
        {{"bits_per_weight",
          "bit",
          "bits of a value of w_q and w_k",
          "bits\nper\nweight",
          {.decimals = -6}},
         &Row::bits}};
}

std::vector<ColumnOf<Row>> columns(const std::vector<ColumnOf<Row>>& form,
                                   const std::vector<ColumnOf<Row>>& measured) {
    std::vector<ColumnOf<Row>> all{{kPrecision, &Row::name},
                                   {{"format", "", "number format", "format"}, [](const Row& row) {
                                        return to_string(row.precision.format);
                                    }}};
    append(all, form);
    append(all, {{{"asked", "", "false: full precision, which --formats leaves out"}, &Row::asked},
                 {{"computed_in", "", "the type in which the backend's kernel had these values"},
                  &Row::computed_in}});
    append(all, measured);
    append(all,
           {{{"worst_layer", "",
              "the targeted measure that is worst in the mean, in the layer where it is worst",
              "worst\nlayer"},
             &Row::worst_layer},
            {{"reaches", "",
              "the targeted measures, means over the layers, reach the target with the far ends of "
              "their intervals",
              "within\ntarget"},
             &Row::reaches},
            {{"is_recommended", "",
              "the row asked for with the fewest bits that reaches, and of these the best"},
             &Row::is_recommended},
            {{"is_nearest", "", "the row asked for whose worst targeted measure is best"},
             &Row::is_nearest}});
    return all;
}

std::vector<ColumnOf<OfLayer>> layer_columns(const std::vector<ColumnOf<OfLayer>>& measured) {
    std::vector<ColumnOf<OfLayer>> all{{kPrecision, &OfLayer::precision},
                                       {report::hidden(report::kLayer), &OfLayer::layer}};
    append(all, measured);
    for (ColumnOf<OfLayer>& one : all) one.column.heading.clear();
    return all;
}

const report::TableOf<Row> kIndex{"index",
                                  "index operands: index_q and index_k in the format, bits of "
                                  "index_k",
                                  1, columns(stored_columns(), of_ids<Row>())},
    kProjections{"projections",
                 "index projections: w_q and w_k in the format, products in f32 or rounded to it",
                 1, columns(projected_columns(), of_ids<Row>())},
    kCache{"cache",
           "KV cache: K and V in the format; the mass is that of an oracle's ids that sees the "
           "stored keys",
           1, columns(stored_columns(), of_cache<Row>())};
const report::TableOf<OfLayer> kIndexLayers{"index_layers", "index operands, by layer", 2,
                                            layer_columns(of_ids<OfLayer>())},
    kProjectionsLayers{"projections_layers", "index projections, by layer", 2,
                       layer_columns(of_ids<OfLayer>())},
    kCacheLayers{"cache_layers", "KV cache, by layer", 2, layer_columns(of_cache<OfLayer>())};

const report::TableOf<Findings> kMeasured{"measured",
                                          "what was measured",
                                          0,
                                          {{report::kQueries, &Findings::queries},
                                           {report::kQueryBlocks, &Findings::blocks},
                                           {report::kSequences, &Findings::sequences}}};

/// Adds the tables of a part; empty ones where there is none.
void add_part(const Part* part, const report::TableOf<Row>& rows,
              const report::TableOf<OfLayer>& by_layer, std::vector<report::Table>& means,
              std::vector<report::Table>& layers) {
    std::vector<OfLayer> of;
    if (part != nullptr)
        for (const Row& row : part->rows)
            for (size_t l = 0; l < part->layers.size(); ++l)
                of.push_back({row.name(), part->layers[l], &row.layers[l]});
    means.push_back(rows.of(part != nullptr ? part->rows : std::vector<Row>()));
    layers.push_back(by_layer.of(of));
}

std::vector<const Part*> parts(const Findings& findings) {
    std::vector<const Part*> all;
    if (findings.index) all.push_back(&*findings.index);
    if (findings.projections) all.push_back(&*findings.projections);
    all.push_back(&findings.cache);
    return all;
}

/// "mass share 0.9990 [0.9980, 0.9995], recall share ..."
std::string reached_text(const Part& part, const Row& row) {
    std::string all;
    for (const std::string& metric : part.targeted) {
        std::string name = metric;
        std::replace(name.begin(), name.end(), '_', ' ');
        add_item(all, ", ", name, ' ', text_of(row.mean[metric]));
    }
    return all;
}

/// The recommendations of the parts that have one, a paragraph each.
std::string recommended_text(const Findings& findings) {
    std::string all;
    for (const Part* part : parts(findings)) {
        const Row* row = part->recommended();
        if (row == nullptr) continue;
        all += concat("\n", part->words, ", ", part->target_text(), ": ", row->name(), ", ",
                      number_text(row->bits, 6),
                      part->of_weights ? " bits per weight"
                                       : concat(" bits per token (",
                                                fixed_text(row->bits_per_value, 2), " per value)"),
                      "; ", reached_text(*part, *row));
    }
    return all.empty() ? "" : "cheapest within the target, mean over the layers:" + all;
}

/// For parts whose target no format reaches: the nearest format. Empty if all targets are reached.
std::string missed_text(const Findings& findings) {
    std::string all;
    for (const Part* part : parts(findings)) {
        if (part->recommended() != nullptr) continue;
        const Row& row = part->nearest();
        add_item(all, "; ", part->words, ", target ", part->target_text(),
                 ": no format asked for reaches it; the nearest is ", row.name(), ", with ",
                 reached_text(*part, row));
    }
    return all;
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

std::string simulated_text(const Findings& findings) {
    const std::string cache = simulated(findings.cache),
                      index = findings.index ? simulated(*findings.index) : "";
    const auto line = [&](const std::string& words, const std::string& names) {
        return names.empty()
                   ? std::string()
                   : concat(words, " in ", names,
                            ": the values that the format holds, computed in f32 for want of a "
                            "kernel of backend ",
                            findings.asked.backend,
                            " that reads the operands so; computed_in in summary.json says which "
                            "rows.");
    };
    if (index == cache && findings.index)
        return line(findings.index->words + " and " + findings.cache.words, cache);
    const std::string first = findings.index ? line(findings.index->words, index) : "",
                      second = line(findings.cache.words, cache);
    return concat(first, first.empty() || second.empty() ? "" : "\n", second);
}

void add_notes(const Findings& findings, const io::RunRecord& run, report::Report& report) {
    report.note("brackets",
                "In brackets: the far end of the 95 % interval, which is held against the target. "
                "summary.json has both ends, and bits per value.");
    if (!findings.index)
        report.note("without_index",
                    "No layer has an Index Branch: its operands are not measured, nor is sparse "
                    "attention. msa-fit-indexer makes them.");
    else if (findings.index->layers != findings.cache.layers)
        report.note("index_layers", concat("The index operands are those of ",
                                           layers_text(findings.index->layers), "."));
    report.note("simulated", simulated_text(findings));
    report.note(report::kIntervals,
                concat("Measured on ", findings.queries, " queries per layer. ",
                       measure::draws_text(findings.blocks, findings.sequences, findings.seed)));
    report.note("elements", concat("Operands are stored in ", run.element, "."));
}

}  // namespace

std::vector<report::Shape> tables() {
    return {kIndex.shape(),       kProjections.shape(),          kCache.shape(),
            kIndexLayers.shape(), kProjectionsLayers.shape(),    kCacheLayers.shape(),
            kMeasured.shape(),    measure::dropped_sinks_shape()};
}

report::Report make_report(const io::ResultsReader& results) {
    const Findings findings = make_findings(results);
    const std::string missed = missed_text(findings), recommended = recommended_text(findings);
    report::Report report{
        .title = concat("Bk ", findings.asked.block_size, ", k ", findings.asked.rule.top_k,
                        "; mean over ", layers_text(findings.cache.averaged)),
        .tables = {},
        .verdict = {missed.empty(), missed.empty() ? recommended : missed}};
    std::vector<report::Table> layers;
    const auto part = [](const std::optional<Part>& of) { return of ? &*of : nullptr; };
    add_part(part(findings.index), kIndex, kIndexLayers, report.tables, layers);
    add_part(part(findings.projections), kProjections, kProjectionsLayers, report.tables, layers);
    add_part(&findings.cache, kCache, kCacheLayers, report.tables, layers);
    report.tables.insert(report.tables.end(), layers.begin(), layers.end());
    report.tables.push_back(kMeasured.of(findings));
    if (!missed.empty()) report.note("recommended", recommended);
    report.note("windows", windows_note(results, "/layers"));
    add_notes(findings, results.run(), report);
    measure::add_dropped_sinks(findings.sinks, report);
    report.note("captures", captures_text(results.run()));
    return report;
}

}  // namespace msa::experiments::precision
