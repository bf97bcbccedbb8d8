// SPDX-License-Identifier: MIT
#include "experiments/precision/options.h"

#include <algorithm>
#include <cmath>

#include "experiments/programs.h"
#include "experiments/report/text.h"

namespace msa::experiments::precision {
namespace {

const About kAbout{
    .program = kProgram,
    .usage = "FILE... --out DIR [--keep SHARE] [--error E] [options]",
    .examples = {"msa-precision data/sample.h5 --out results/precision --block-size 32 --top-k 8",
                 "msa-precision data/sample.h5 --out results/precision-4bit --block-size 32 "
                 "--top-k 8 --formats int4,fp4 --scales block --error 0.3",
                 "msa-precision data/sample.h5 --out results/projections --indexer "
                 "results/fit/results.h5 --formats bf16,f16"},
    .writes =
        "DIR/results.h5 (groups /layers, /queries, /precision; see data/FORMAT.md),\n"
        "DIR/summary.json (tables, see there), DIR/tables/NAME.csv and DIR/precision.txt (what\n"
        "is printed). If no format reaches a target, the nearest one is named, and the exit code\n"
        "is 2.",
};

constexpr const char* kNoRotation = "none";

std::vector<std::string> format_names() {
    std::vector<std::string> names;
    for (size_t f = 0; f < kNumberFormats; ++f)
        names.emplace_back(to_string(static_cast<NumberFormat>(f)));
    return names;
}
std::vector<std::string> unit_names() {
    std::vector<std::string> names;
    for (size_t u = 0; u < kScaleUnits; ++u)
        names.emplace_back(to_string(static_cast<ScaleUnit>(u)));
    return names;
}
std::vector<std::string> rotation_names() { return {kNoRotation, kHadamard}; }

/// A row of names of which all are meant where none is given.
void add_names(OptionTable& table, const std::string& flag, std::vector<std::string>& to,
               const std::vector<std::string>& known, const std::string& help) {
    OptionRow& row = table.names(
        flag, "NAME,...", to,
        [=](const std::string& name) { return known[choice(flag, name, known)]; },
        help + ": " + join(known));
    row.shown_as("all").offers(known);
    row.check = [=, &to] {
        if (to.empty()) to = known;
    };
}

bool has(const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

OptionTable option_table(PrecisionOptions& o) {
    OptionTable table(kAbout);
    add_files(table, o);
    table.real("keep", "SHARE", o.keep,
               "target of the index operands and projections: the share of full precision's "
               "attention mass, and of its recall of the oracle's blocks, that the format's ids "
               "keep",
               {"above 0 and at most 1", [](double value) { return value > 0 && value <= 1; }});
    table.real(
        "error", "E", o.error,
        "target of the KV cache: at most this relative output error of attention",
        {"at least 0 and finite", [](double value) { return value >= 0 && std::isfinite(value); }});
    table.path("indexer", "FILE", o.indexer,
               "results.h5 of msa-fit-indexer: its Index Branch projects x to index_q and index_k, "
               "and also with weights in each format that needs no scale, with the product in f32 "
               "and rounded to the format; default: the operands of the file");
    add_names(table, "formats", o.formats, format_names(), "number formats");
    add_names(table, "scales", o.scales, unit_names(),
              concat("values that share a scale in e4m3, e5m2, int8 and int4 (block: ", kScaleBlock,
                     " channels; fp4 always has scales of blocks, int8 and int4 need one)"));
    add_names(table, "rotations", o.rotations, rotation_names(),
              "rotation of the channels of each head, before they are stored");
    table.numbers("layers", "L,...", o.layers,
                  "layers; default: all of the file without a sliding window, or of --indexer");
    add_sizes(table, o);
    add_all_rows(table, o);
    add_queries(table, o);
    table.seed(o.seed, "seed of sampling and of the bootstrap");
    add_backend(table, o);
    add_existing(table, o);
    return table;
}

std::optional<PrecisionOptions> parse_precision_options(std::span<const std::string> args,
                                                        std::ostream& out) {
    PrecisionOptions o;
    if (!option_table(o).parse(args, out)) return std::nullopt;
    o.rule.validate();
    precisions(o.formats, o.scales, o.rotations);
    return o;
}

std::vector<Precision> precisions(const std::vector<std::string>& formats,
                                  const std::vector<std::string>& scales,
                                  const std::vector<std::string>& rotations) {
    std::vector<Precision> all{{}};
    for (const std::string& name : formats) {
        const auto format = static_cast<NumberFormat>(choice("formats", name, format_names()));
        if (format == NumberFormat::float32) continue;
        const std::vector<ScaleUnit> units = scale_units(format);
        const size_t before = all.size();
        for (ScaleUnit unit : units) {
            if (units.size() > 1 && !has(scales, to_string(unit))) continue;
            if (has(rotations, kNoRotation)) all.push_back({format, unit, false});
            if (has(rotations, kHadamard)) all.push_back({format, unit, true});
        }
        require(all.size() > before, "--scales leaves out every scale of ", name,
                ", which needs one");
    }
    return all;
}

std::vector<Projection> projections(const std::vector<std::string>& formats) {
    std::vector<Projection> all{{}};
    for (const std::string& name : formats) {
        const auto format = static_cast<NumberFormat>(choice("formats", name, format_names()));
        if (format == NumberFormat::float32 || scale_units(format).front() != ScaleUnit::none)
            continue;
        for (bool rounded : {false, true}) all.push_back({{.format = format}, rounded});
    }
    return all;
}

}  // namespace msa::experiments::precision
