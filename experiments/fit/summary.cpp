// SPDX-License-Identifier: MIT
#include "experiments/fit/summary.h"

#include <nlohmann/json.hpp>
#include <ostream>

#include "analysis/metrics.h"
#include "experiments/driver/estimate.h"
#include "experiments/driver/operands.h"
#include "experiments/driver/rows.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/table.h"
#include "experiments/fit/options.h"
#include "experiments/fit/state.h"
#include "experiments/measure/drawn.h"

namespace msa::experiments::fit {
namespace {

using nlohmann::ordered_json;

constexpr int kDecimals = 4;

std::string group_of(const std::string& layer) { return "/fit/" + layer; }

int64_t size_of(const io::ResultsReader& results, const std::string& layer, const char* name) {
    return static_cast<int64_t>(results.number(group_of(layer), name));
}

/// Measures of one kind of blocks of queries, and the group that these blocks stand in.
struct OfBlocks {
    const char* group;
    std::vector<const char*> measures;
};
const std::vector<OfBlocks> kOfBlocks{
    {"kl", {"kl", "kl_selected"}},
    {"recall", {"block_recall", "score_recall", "mass_kept", "oracle_mass"}},
};

std::string blocks_group(const std::string& layer, const OfBlocks& of) {
    return group_of(layer) + "/blocks/" + of.group;
}

/// A measure of the last evaluation, and what it is more than at the start.
struct Sure {
    const analysis::Metric* metric;
    double start;
    analysis::Estimate last, gain;

    bool is_of_fit() const { return std::string_view(metric->name) != "oracle_mass"; }
    bool is_distinguishable() const { return !(gain.low <= 0 && gain.high >= 0); }
};

std::vector<Sure> sure_measures(const io::ResultsReader& results, const std::string& layer) {
    const std::vector<Evaluation> evaluations = read_evaluations(results, std::stoll(layer));
    std::vector<Sure> all;
    for (const OfBlocks& of : kOfBlocks) {
        const std::string group = blocks_group(layer, of);
        std::vector<double> first, last, more;
        for (const char* name : of.measures)
            for (const Measure& measure : kMeasures)
                if (std::string_view(measure.metric) == name) {
                    first.push_back(evaluations.front().*measure.value);
                    last.push_back(evaluations.back().*measure.value);
                    more.push_back(last.back() - first.back());
                }
        const measure::DrawnBlocks blocks(results, group);
        const auto drawn = [&](const char* at) {
            const auto sums = results.read<double, 2>(group + at + "/sums");
            const auto counts = results.read<int64_t, 2>(group + at + "/counts");
            const int64_t groups = sums.extent(1) / std::ssize(first);
            std::vector<std::vector<double>> columns;
            for (int64_t c = 0; c < std::ssize(first); ++c)
                columns.push_back(blocks.means(sums.view(), counts.view(), c * groups, groups));
            return columns;
        };
        const auto at_start = drawn("/start"), at_end = drawn("/last");
        for (size_t n = 0; n < first.size(); ++n)
            all.push_back(
                {&analysis::metric(of.measures[n]), first[n],
                 analysis::with_interval(last[n], at_end[n]),
                 analysis::with_interval(more[n], measure::differences(at_end[n], at_start[n]))});
    }
    return all;
}

/// "0.0123 [0.0101, 0.0150]", with its sign.
std::string gain_text(const analysis::Estimate& gain) {
    return (gain.value > 0 ? "+" : "") + experiments::text_of(gain);
}

/// How sure the last evaluation of each layer is, and what it gained; nothing where no layer has
/// two blocks.
void print_intervals(const io::ResultsReader& results, std::ostream& out) {
    Table table({"layer", "measure", "start", "after the last step\n95 % interval",
                 "gain over the start\n95 % interval", ""});
    std::string from;
    bool marked = false;
    for (const std::string& layer : results.list("/fit")) {
        const measure::DrawnBlocks blocks(results, blocks_group(layer, kOfBlocks.front()));
        if (!blocks.can_draw()) continue;
        from = blocks.text(results.run().seed);
        for (const Sure& of : sure_measures(results, layer)) {
            const bool none = of.is_of_fit() && !of.is_distinguishable();
            marked |= none;
            table.add({layer, of.metric->heading, fixed_text(of.start, kDecimals),
                       experiments::text_of(of.last), of.is_of_fit() ? gain_text(of.gain) : "",
                       none ? "=" : ""});
        }
    }
    if (table.empty()) return;
    out << "\nOn the held-out queries:\n";
    table.print(out);
    print_paragraph(out,
                    from + " The gain is of the same draws at the start and at the end" +
                        (marked ? "; =: its interval holds 0, on these queries the two are not "
                                  "distinguishable."
                                : "."));
}

constexpr const char* kCosts[] = {"index_flops", "index_bytes"};

/// What was fitted, and what its scores cost.
std::string architecture_text(const io::ResultsReader& results, const std::string& layer) {
    const IndexForm form = read_weights(results, std::stoll(layer)).form();
    const char* name = form.is_gate() ? "seerattention" : form.head_weights ? "dsa" : "msa";
    const char* which = form.is_gate()      ? ", one of each group, with pooled keys of each group"
                        : form.head_weights ? " with learned weights, one choice for all groups"
                                            : ", one of each group";
    const std::string group = group_of(layer);
    return concat(name, ": ", form.groups, " index heads of ", form.index_dim, " channels", which,
                  "; scores take ", number_text(results.number(group, kCosts[0]) / 1000, 4),
                  " kFLOP per query and read ",
                  number_text(results.number(group, kCosts[1]) / 1024, 4), " KiB of keys");
}

constexpr const char* kCounts[] = {"warmup_steps", "train_queries", "held_out_queries",
                                   "rows_counted", "dead_heads"};

/// An evaluation with its layer.
struct Evaluated : Evaluation {
    std::string layer;
};

/// Of each layer the evaluation before the first step, then the last one.
Rows evaluation_rows(const io::ResultsReader& results) {
    using Of = const Evaluated&;
    std::vector<ColumnOf<Evaluated>> columns{
        {{"layer", "layer"}, [](Of e) { return int64_t{std::stoll(e.layer)}; }},
        {{"steps", "steps"}, &Evaluated::step}};
    for (const Measure& measure : kMeasures)
        columns.push_back({metric_column(measure.metric), measure.value});
    columns.push_back({{"split"}, [&](Of e) { return results.text(group_of(e.layer), "split"); }});
    for (const char* name : kCounts)
        columns.push_back({{name}, [&, name](Of e) { return size_of(results, e.layer, name); }});
    for (const char* name : kCosts)
        columns.push_back(
            {{name}, [&, name](Of e) { return results.number(group_of(e.layer), name); }});
    std::vector<Evaluated> evaluated;
    for (const std::string& layer : results.list("/fit")) {
        const std::vector<Evaluation> all = read_evaluations(results, std::stoll(layer));
        for (const Evaluation& one : {all.front(), all.back()}) evaluated.push_back({one, layer});
    }
    return {columns, evaluated};
}

}  // namespace

std::string fit_definitions(const std::string& note) {
    ordered_json definitions;
    for (const Measure& measure : kMeasures)
        definitions[measure.metric] = analysis::metric(measure.metric).definition;
    if (!note.empty()) definitions["top_k"] = note;
    definitions["steps"] = "training steps done before the evaluation";
    definitions["warmup_steps"] = "first steps, with the KL over all visible keys";
    definitions["split"] = "which queries were trained on, which are held out";
    definitions["train_queries"] = "queries that training steps draw from";
    definitions["held_out_queries"] = "held-out queries evaluated";
    definitions["rows_counted"] =
        "held-out queries with more visible blocks than k, in the averages of recall, mass and "
        "output error; averages go over queries, then over groups or heads";
    for (const char* name : {"dead_heads", kCosts[0], kCosts[1]})
        definitions[name] = analysis::metric(name).definition;
    definitions["intervals"] =
        std::string(measure::kIntervalsWords) + "; of the last evaluation, on its held-out queries";
    definitions["gain"] =
        "the last evaluation minus the one before the first step, with the interval of the "
        "difference, both on the same draws; a KL gets better by falling";
    return definitions.dump();
}

std::string fit_rows_csv(const io::ResultsReader& results) {
    return evaluation_rows(results).csv();
}

std::string fit_summary_json(const io::ResultsReader& results) {
    ordered_json summary = begin_summary("msa-summary", results.run());
    summary["rows"] = ordered_json::array();
    const Rows rows = evaluation_rows(results);
    const std::vector<std::string> layers = results.list("/fit");
    for (size_t l = 0; l < layers.size(); ++l) {
        ordered_json row = rows.json(2 * l + 1);
        for (const Sure& of : sure_measures(results, layers[l])) {
            row["intervals"][of.metric->name] = measure::interval_json(of.last);
            if (of.is_of_fit()) row["gain"][of.metric->name] = estimate_json(of.gain);
        }
        summary["rows"].push_back(row);
    }
    return summary.dump(2) + "\n";
}

void print_fit_table(const io::ResultsReader& results, std::ostream& out) {
    const std::string first = results.list("/fit").front(), last = results.list("/fit").back();
    const auto options = recorded_options<FitOptions>(results.run().options);
    out << size_of(results, first, "tokens") << " tokens in blocks of " << options.block_size
        << "; k = " << options.rule.top_k << " of " << size_of(results, first, "blocks")
        << " blocks per query and group; " << results.text(group_of(first), "split") << "\n"
        << architecture_text(results, first) << "\n\n";
    const Rows rows = evaluation_rows(results);
    rows.print(out);
    out << '\n';
    rows.print_definitions(out);
    print_intervals(results, out);
    out << "\nHeld-out queries counted, those with more visible blocks than k: "
        << size_of(results, last, "rows_counted") << ".\n"
        << elements_text(results.run()) << '\n';
    print_captures(results.run(), out);
}

}  // namespace msa::experiments::fit
