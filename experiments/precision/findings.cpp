// SPDX-License-Identifier: MIT
#include "experiments/precision/findings.h"

#include <algorithm>

#include "experiments/driver/full_layers.h"
#include "experiments/measure/sums.h"
#include "experiments/report/text.h"

namespace msa::experiments::precision {
namespace {

/// Rows without numbers, as the options of the run say.
std::vector<Row> rows_asked(const PrecisionOptions& o, const std::vector<Projection>& all) {
    std::vector<Row> rows;
    for (const Projection& one : all) {
        Row row;
        row.precision = one.precision;
        row.rounded_product = one.rounded_product;
        row.asked =
            std::ranges::find(o.formats, to_string(one.precision.format)) != o.formats.end();
        rows.push_back(std::move(row));
    }
    return rows;
}
std::vector<Row> rows_asked(const PrecisionOptions& o) {
    std::vector<Projection> all;
    for (const Precision& precision : precisions(o.formats, o.scales, o.rotations))
        all.push_back({precision});
    return rows_asked(o, all);
}

bool is_averaged(const Part& part, int64_t layer) {
    return std::ranges::find(part.averaged, layer) != part.averaged.end();
}

/// Of these layers those with that part which its means are over.
std::vector<int64_t> averaged_with(const io::ResultsReader& results,
                                   const std::vector<std::string>& layers,
                                   const std::string& part) {
    std::vector<int64_t> numbers;
    for (const std::string& layer : layers)
        if (results.has(concat("/precision/", layer, "/", part)))
            numbers.push_back(std::stoll(layer));
    return averaged_layers(results, numbers);
}

/// The row on the layers that its mean is over.
std::vector<const NumbersByMetric*> averaged(const Part& part, const Row& row) {
    std::vector<const NumbersByMetric*> layers;
    for (size_t l = 0; l < part.layers.size(); ++l)
        if (is_averaged(part, part.layers[l])) layers.push_back(&row.layers[l]);
    return layers;
}

/// What every layer says of the part's rows beside their numbers.
void read_layer(const io::ResultsReader& results, const std::string& layer, Part& part,
                std::vector<NumbersByMetric> kept) {
    const std::string group = "/precision/" + layer + "/" + part.name;
    const auto bits = results.read<double, 1>(group + "/bits");
    const double values = results.number(group, "values");
    const int64_t number = std::stoll(layer);
    const std::vector<std::string> computed_in =
        split_list("computed_in", results.text(group, "computed_in"));
    for (size_t s = 0; s < part.rows.size(); ++s) {
        Row& row = part.rows[s];
        if (is_averaged(part, number)) {
            row.bits += bits(static_cast<int64_t>(s));
            row.bits_per_value += bits(static_cast<int64_t>(s)) / values;
        }
        row.computed_in = computed_in[s];
        row.layers.push_back(std::move(kept[s]));
    }
    part.layers.push_back(number);
}

/// Adds the row's share of a number at full precision.
void add_share(const char* name, const char* of, const measure::Numbers& full,
               NumbersByMetric& to) {
    to.add(name, to.numbers(of) / full);
}

void add_index(const io::ResultsReader& results, const std::string& layer, Part& part) {
    const measure::LayerNumbers of(results, layer);
    std::vector<NumbersByMetric> kept;
    for (size_t s = 0; s < part.rows.size(); ++s) {
        // Full precision is common to both parts.
        const std::string name = concat(s == 0 ? "index" : part.name, "/", s);
        NumbersByMetric& row = kept.emplace_back(of, name);
        row.add("precision_recall", of.recall(name + "/precision_recall", "block_recall"));
        add_share("mass_share", "mass_kept", kept.front().numbers("mass_kept"), row);
        add_share("recall_share", "block_recall", kept.front().numbers("block_recall"), row);
    }
    read_layer(results, layer, part, std::move(kept));
}

void add_cache(const io::ResultsReader& results, const std::string& layer, bool sparse,
               Part& part) {
    const measure::LayerNumbers of(results, layer);
    std::vector<NumbersByMetric> kept;
    for (size_t s = 0; s < part.rows.size(); ++s) {
        const std::string name = concat("cache/", s);
        NumbersByMetric& row = kept.emplace_back(of, name);
        row.add("dense_error", of.error(name + "/dense_error"));
        add_share("mass_share", "mass_kept", kept.front().numbers("mass_kept"), row);
        if (sparse) row.add("sparse_error", of.error(name + "/sparse_error"));
    }
    read_layer(results, layer, part, std::move(kept));
}

/// The index projections, without layers: measured as the index operands are.
Part projections_beside(Part index, const PrecisionOptions& o) {
    index.name = "projections";
    index.words = "index projections";
    index.of_weights = true;
    index.rows = rows_asked(o, projections(o.formats));
    return index;
}

/// How far the mean of a row is on the right side of the bound; NaN where it is.
double margin(const Part& part, const Row& row, const std::string& metric, bool far_end) {
    const analysis::Estimate& of = row.mean[metric];
    if (part.at_least) return (far_end ? of.least() : of.value) - part.bound;
    return part.bound - (far_end ? of.most() : of.value);
}

/// The worst targeted metric of a row in the layer where it is worst.
double worst_layer(const Part& part, const Row& row) {
    const std::string& metric = part.worst(row);
    const std::vector<const NumbersByMetric*> layers = averaged(part, row);
    double worst = (*layers.front())[metric].value;
    for (const NumbersByMetric* layer : layers) {
        const double value = (*layer)[metric].value;
        worst = part.at_least ? std::min(worst, value) : std::max(worst, value);
    }
    return worst;
}

/// Computes the means, and finds the rows recommended and nearest.
void complete_rows(Part& part) {
    const auto count = static_cast<double>(part.averaged.size());
    const auto score = [&](const Row& row) { return margin(part, row, part.worst(row), false); };
    Row *best = nullptr, *nearest = nullptr;
    for (Row& row : part.rows) {
        row.bits /= count;
        row.bits_per_value /= count;
        row.mean = NumbersByMetric::mean(averaged(part, row));
        row.worst_layer = worst_layer(part, row);
        row.reaches = std::all_of(
            part.targeted.begin(), part.targeted.end(),
            [&](const std::string& metric) { return margin(part, row, metric, true) >= 0; });
        if (!row.asked) continue;
        if (nearest == nullptr || score(row) > score(*nearest)) nearest = &row;
        if (!row.reaches) continue;
        if (best == nullptr || row.bits < best->bits ||
            (row.bits == best->bits && score(row) > score(*best)))
            best = &row;
    }
    (nearest != nullptr ? *nearest : part.rows.front()).is_nearest = true;
    if (best != nullptr) best->is_recommended = true;
}

}  // namespace

std::string Row::name() const {
    return concat(to_string(precision), rounded_product ? ", rounded product" : "");
}

const std::string& Part::worst(const Row& row) const {
    return *std::ranges::min_element(
        targeted, {}, [&](const std::string& metric) { return margin(*this, row, metric, false); });
}

const Row* Part::recommended() const {
    const auto found = std::ranges::find_if(rows, &Row::is_recommended);
    return found == rows.end() ? nullptr : &*found;
}
const Row& Part::nearest() const { return *std::ranges::find_if(rows, &Row::is_nearest); }

std::string Part::target_text() const {
    std::string names;
    for (const std::string& metric : targeted) names += (names.empty() ? "" : " and ") + metric;
    std::replace(names.begin(), names.end(), '_', ' ');
    return concat(names, " of ", at_least ? "at least " : "at most ", bound);
}

Findings make_findings(const io::ResultsReader& results) {
    Findings findings;
    findings.asked = recorded_options<PrecisionOptions>(results.run().options);
    const PrecisionOptions& o = findings.asked;
    findings.seed = results.run().seed;
    Part index{.name = "index",
               .words = "index operands",
               .layers = {},
               .averaged = {},
               .rows = rows_asked(o),
               .bound = o.keep,
               .at_least = true,
               .targeted = {"mass_share", "recall_share"}};
    findings.cache = {.name = "cache",
                      .words = "KV cache",
                      .layers = {},
                      .averaged = {},
                      .rows = rows_asked(o),
                      .bound = o.error,
                      .at_least = false,
                      .targeted = {"dense_error"}};
    Part weights = projections_beside(index, o);
    const std::vector<std::string> layers = results.list("/precision");
    // Sparse attention has an error where every layer has ids.
    const bool sparse = std::all_of(layers.begin(), layers.end(), [&](const std::string& layer) {
        return results.has("/precision/" + layer + "/index");
    });
    for (Part* part : {&index, &weights, &findings.cache})
        part->averaged = averaged_with(results, layers, part->name);
    if (sparse) findings.cache.targeted.emplace_back("sparse_error");
    for (const std::string& layer : layers) {
        add_cache(results, layer, sparse, findings.cache);
        if (results.has("/precision/" + layer + "/index")) {
            add_index(results, layer, index);
            if (results.has("/precision/" + layer + "/projections"))
                add_index(results, layer, weights);
            findings.sinks.push_back(measure::read_sink(results, layer, "index/0", "index"));
        }
        const measure::DrawnBlocks drawn(results, "/query_blocks/" + layer);
        findings.queries = std::max(findings.queries, drawn.queries());
        findings.blocks = std::max(findings.blocks, drawn.blocks());
        findings.sequences = std::max(findings.sequences, drawn.sequences());
    }
    complete_rows(findings.cache);
    if (!index.layers.empty()) {
        complete_rows(index);
        findings.index = std::move(index);
    }
    if (!weights.layers.empty()) {
        complete_rows(weights);
        findings.projections = std::move(weights);
    }
    return findings;
}

}  // namespace msa::experiments::precision
