// SPDX-License-Identifier: MIT
#include "experiments/fit/summary.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>

#include "analysis/metrics.h"
#include "experiments/driver/estimate.h"
#include "experiments/driver/full_layers.h"
#include "experiments/driver/learned_note.h"
#include "experiments/driver/operands.h"
#include "experiments/driver/rows.h"
#include "experiments/driver/run_record.h"
#include "experiments/driver/table.h"
#include "experiments/fit/architecture.h"
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

/// A measure of the best evaluation, and what it is more than at the start.
struct Sure {
    const analysis::Metric* metric;
    double start;
    analysis::Estimate best, gain;
    ordered_json interval;  // of the best

    bool is_of_fit() const { return std::string_view(metric->name) != "oracle_mass"; }
    bool is_distinguishable() const { return !(gain.low <= 0 && gain.high >= 0); }
};

std::vector<Sure> sure_measures(const io::ResultsReader& results, const std::string& layer) {
    const std::vector<Evaluation> evaluations = read_evaluations(results, std::stoll(layer));
    const Evaluation& kept = evaluations[read_best(results, std::stoll(layer))];
    std::vector<Sure> all;
    for (const OfBlocks& of : kOfBlocks) {
        const std::string group = blocks_group(layer, of);
        std::vector<double> first, best, more;
        for (const char* name : of.measures)
            for (const Measure& measure : kMeasures)
                if (std::string_view(measure.metric) == name) {
                    first.push_back(evaluations.front().*measure.value);
                    best.push_back(kept.*measure.value);
                    more.push_back(best.back() - first.back());
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
        const auto at_start = drawn("/start"), at_best = drawn("/best");
        for (size_t n = 0; n < first.size(); ++n) {
            const analysis::Estimate estimate = analysis::with_interval(best[n], at_best[n]);
            all.push_back(
                {&analysis::metric(of.measures[n]), first[n], estimate,
                 analysis::with_interval(more[n], measure::differences(at_best[n], at_start[n])),
                 measure::interval_json(estimate, blocks)});
        }
    }
    return all;
}

/// "0.0123 [0.0101, 0.0150]", with its sign.
std::string gain_text(const analysis::Estimate& gain) {
    return (gain.value > 0 ? "+" : "") + experiments::text_of(gain);
}

/// How sure the best evaluation of each layer is, and what it gained, or why nothing says so.
void print_intervals(const io::ResultsReader& results, std::ostream& out) {
    Table table({"layer", "measure", "start", "kept\n95 % interval",
                 "gain over the start\n95 % interval", ""});
    std::string from;
    bool marked = false;
    for (const std::string& layer : results.list("/fit")) {
        const measure::DrawnBlocks blocks(results, blocks_group(layer, kOfBlocks.front()));
        if (from.empty() || blocks.can_draw()) from = blocks.text(results.run().seed);
        if (!blocks.can_draw()) continue;
        for (const Sure& of : sure_measures(results, layer)) {
            const bool none = of.is_of_fit() && !of.is_distinguishable();
            marked |= none;
            table.add({layer, of.metric->heading, fixed_text(of.start, kDecimals),
                       experiments::text_of(of.best), of.is_of_fit() ? gain_text(of.gain) : "",
                       none ? "=" : ""});
        }
    }
    out << '\n';
    if (table.empty()) {
        print_paragraph(out, from);
        return;
    }
    out << "On the held-out queries:\n";
    table.print(out);
    print_paragraph(out,
                    from + " The gain is of the same draws at the start and of the weights kept" +
                        (marked ? "; =: its interval holds 0, on these queries the two are not "
                                  "distinguishable."
                                : "."));
}

constexpr const char* kCosts[] = {"index_flops", "index_bytes"};

/// What was fitted, and what its scores cost.
std::string architecture_text(const io::ResultsReader& results, const std::string& layer) {
    const IndexForm form = read_weights(results, std::stoll(layer)).form();
    const std::string group = group_of(layer);
    return concat(form.traits().name, ": ", form.groups, " index heads of ", form.index_dim,
                  " channels", fitted(form.architecture).heads, "; scores take ",
                  number_text(results.number(group, kCosts[0]) / 1000, 4),
                  " kFLOP per query and read ",
                  number_text(results.number(group, kCosts[1]) / 1024, 4), " KiB of keys");
}

constexpr const char* kCounts[] = {"warmup_steps", "train_queries", "held_out_queries",
                                   "rows_counted", "dead_heads"};

/// An evaluation with its layer.
struct Evaluated : Evaluation {
    std::string layer;
    int64_t best_step, steps_done;  // of the layer

    bool is_kept() const { return step == best_step; }
};
using Evaluations = std::vector<Evaluated>;

/// Of each layer the evaluation before the first step, the best one and the last one, each once.
Evaluations evaluations_of(const io::ResultsReader& results) {
    Evaluations found;
    for (const std::string& layer : results.list("/fit")) {
        const std::vector<Evaluation> all = read_evaluations(results, std::stoll(layer));
        const size_t best = read_best(results, std::stoll(layer));
        for (size_t n : std::set{size_t{0}, best, all.size() - 1})
            found.push_back({all[n], layer, all[best].step, all.back().step});
    }
    return found;
}

Rows evaluation_rows(const io::ResultsReader& results, const Evaluations& found) {
    using Of = const Evaluated&;
    std::vector<ColumnOf<Evaluated>> columns{
        {{"layer", "layer"}, [](Of e) { return int64_t{std::stoll(e.layer)}; }},
        {{"steps", "steps"}, &Evaluated::step},
        {{"", "kept"}, [](Of e) { return std::string(e.is_kept() ? "*" : ""); }},
        {{"best_step"}, &Evaluated::best_step}};
    if (std::ranges::any_of(found, [&](Of e) { return results.has(group_of(e.layer), "window"); }))
        columns.push_back(
            {window_column(), [&](Of e) { return window_value(results, group_of(e.layer)); }});
    for (const Measure& measure : kMeasures)
        columns.push_back({metric_column(measure.metric), measure.value});
    columns.push_back({{"split"}, [&](Of e) { return results.text(group_of(e.layer), "split"); }});
    for (const char* name : kCounts)
        columns.push_back({{name}, [&, name](Of e) { return size_of(results, e.layer, name); }});
    for (const char* name : kCosts)
        columns.push_back(
            {{name}, [&, name](Of e) { return results.number(group_of(e.layer), name); }});
    columns.push_back(
        {{kFirstForced}, [&](Of e) { return results.number(group_of(e.layer), kFirstForced); }});
    for (const UntrainedMeasure& of : kUntrained)
        columns.push_back(
            {{of.name}, [&](Of e) { return results.number(group_of(e.layer), of.name); }});
    return {columns, found};
}

/// Starts in closed form, and what is kept, beside what nobody trains.
ordered_json weak(const io::ResultsReader& results, const Evaluations& found) {
    const bool closed_form =
        recorded_options<FitOptions>(results.run().options).start != Start::normal;
    std::vector<Learned> all;
    for (const Evaluated& e : found) {
        const bool is_start = e.step == 0 && closed_form && !e.is_kept();
        if (!is_start && !e.is_kept()) continue;
        const std::string group = group_of(e.layer);
        Learned& of = all.emplace_back(
            Learned{std::stoll(e.layer), is_start ? "the start" : "what is kept", e.block_recall,
                    e.mass_kept, results.number(group, "random_recall")});
        if (e.is_kept())
            of.rivals = {{"window", results.number(group, "window_mass")},
                         {"mean-key", results.number(group, "mean_key_mass")}};
    }
    return weak_indexers(all);
}

/// Where the first block would be worth its slot.
void print_first_forced(const io::ResultsReader& results, const Evaluations& found,
                        std::ostream& out) {
    constexpr double kWorth = 0.005;
    std::string gains;
    for (const Evaluated& of : found) {
        const double forced = results.number(group_of(of.layer), kFirstForced);
        if (of.is_kept() && forced > of.mass_kept + kWorth)
            gains += concat(gains.empty() ? "" : "; ", "layer ", of.layer, ", ",
                            fixed_text(of.mass_kept, 3), " to ", fixed_text(forced, 3));
    }
    if (!gains.empty())
        print_paragraph(
            out, "Keeps more mass with the first block forced (--forced-first 1): " + gains + ".");
}

std::string remedy(const io::ResultsReader& results, const FitOptions& o) {
    const int64_t head_dim = size_of(results, results.list("/fit").front(), "head_dim");
    std::string words = "more --steps";
    if (o.index_dim < head_dim && head_dim <= kMaxIndexDim)
        words += concat(", --index-dim ", head_dim, " (the channels of the model's heads)");
    if (o.rule.forced_first == 0)
        words += ", --forced-first 1, with which window and mean-key are measured here";
    return words;
}

}  // namespace

std::string fit_definitions(const std::string& note) {
    ordered_json definitions;
    for (const Measure& measure : kMeasures)
        definitions[measure.metric] = analysis::metric(measure.metric).definition;
    if (!note.empty()) definitions["top_k"] = note;
    definitions["steps"] = "training steps done";
    definitions["best_step"] =
        "steps done before the evaluation that keeps most mass, whose weights and measures these "
        "are; it was chosen by the same held-out queries";
    definitions["warmup_steps"] = "first steps, with the KL over all visible keys";
    definitions["split"] = "which queries were trained on, which are held out";
    definitions["train_queries"] = "queries that training steps draw from";
    definitions["held_out_queries"] = "held-out queries evaluated";
    definitions["rows_counted"] =
        "held-out queries with more visible blocks than k, in the averages of recall, mass and "
        "output error; averages go over queries, then over groups or heads";
    for (const char* name : {"dead_heads", kCosts[0], kCosts[1]})
        definitions[name] = analysis::metric(name).definition;
    definitions[kFirstForced] =
        "mass that the best evaluation keeps with the first block forced (--forced-first 1)";
    for (const UntrainedMeasure& of : kUntrained) definitions[of.name] = of.definition;
    definitions["intervals"] =
        std::string(measure::kIntervalsWords) + "; of the best evaluation, on its held-out queries";
    definitions["gain"] =
        "the best evaluation minus the one before the first step, with the interval of the "
        "difference, both on the same draws; a KL gets better by falling";
    return definitions.dump();
}

std::string fit_rows_csv(const io::ResultsReader& results) {
    return evaluation_rows(results, evaluations_of(results)).csv();
}

std::string fit_summary_json(const io::ResultsReader& results) {
    ordered_json summary = begin_summary("msa-summary", results.run());
    summary["rows"] = ordered_json::array();
    const Evaluations found = evaluations_of(results);
    const Rows rows = evaluation_rows(results, found);
    for (size_t n = 0; n < found.size(); ++n) {
        const Evaluated& of = found[n];
        if (!of.is_kept()) continue;
        ordered_json row = rows.json(n);
        row["steps"] = of.steps_done;
        for (const Sure& sure : sure_measures(results, of.layer)) {
            row["intervals"][sure.metric->name] = sure.interval;
            if (sure.is_of_fit()) row["gain"][sure.metric->name] = estimate_json(sure.gain);
        }
        summary["rows"].push_back(row);
    }
    summary["weak_indexers"] = weak(results, found);
    return summary.dump(2) + "\n";
}

void print_fit_table(const io::ResultsReader& results, std::ostream& out) {
    const std::string first = results.list("/fit").front(), last = results.list("/fit").back();
    const auto options = recorded_options<FitOptions>(results.run().options);
    out << size_of(results, first, "tokens") << " tokens in blocks of " << options.block_size
        << "; k = " << options.rule.top_k << " of " << size_of(results, first, "blocks")
        << " blocks per query and group; " << results.text(group_of(first), "split") << "\n"
        << architecture_text(results, first) << "\n\n";
    const Evaluations found = evaluations_of(results);
    const Rows rows = evaluation_rows(results, found);
    rows.print(out);
    out << "*: the weights that are kept, of the evaluation that keeps most mass\n";
    std::vector<int64_t> worse;
    for (const Evaluated& of : found)
        if (of.is_kept() && of.step < of.steps_done) worse.push_back(std::stoll(of.layer));
    if (!worse.empty())
        print_paragraph(out, "Made worse by further steps: " + layers_text(worse) +
                                 ". More queries to train on, fewer steps or a smaller --lr may "
                                 "help.");
    print_first_forced(results, found, out);
    print_weak_indexers(weak(results, found), remedy(results, options), out);
    print_windows(results, "/fit", out);
    out << '\n';
    rows.print_definitions(out);
    print_intervals(results, out);
    out << "\nHeld-out queries counted, those with more visible blocks than k: "
        << size_of(results, last, "rows_counted") << ".\n"
        << elements_text(results.run()) << '\n';
    print_captures(results.run(), out);
}

}  // namespace msa::experiments::fit
