// SPDX-License-Identifier: MIT
#include "experiments/fit/findings.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "experiments/driver/full_layers.h"
#include "experiments/fit/options.h"
#include "experiments/fit/state.h"
#include "experiments/measure/drawn.h"

namespace msa::experiments::fit {
namespace {

using analysis::Estimate;

/// Measures of one kind of blocks of queries, and the group that these blocks stand in.
struct OfBlocks {
    const char* group;
    std::vector<const char*> measures;
};
const std::vector<OfBlocks> kOfBlocks{
    {"kl", {"kl", "kl_selected"}},
    {"recall", {"block_recall", "score_recall", "mass_kept", "oracle_mass"}},
};

std::string blocks_group(int64_t layer, const OfBlocks& of) {
    return concat("/fit/", layer, "/blocks/", of.group);
}

double value_of(const Evaluation& of, const std::string& measure) {
    for (const Measure& known : kMeasures)
        if (measure == known.metric) return of.*known.value;
    throw std::logic_error("no measure " + measure);
}

/// What two evaluations found in the blocks of queries of one kind.
std::vector<Gain> gains_of(const io::ResultsReader& results, int64_t layer, const OfBlocks& of,
                           const Evaluation& start, const Evaluation& kept) {
    const std::string group = blocks_group(layer, of);
    const measure::DrawnBlocks blocks(results, group);
    const auto drawn = [&](const char* at) {
        const auto sums = results.read<double, 2>(group + at + "/sums");
        const auto counts = results.read<int64_t, 2>(group + at + "/counts");
        const int64_t groups = sums.extent(1) / std::ssize(of.measures);
        std::vector<std::vector<double>> columns;
        for (int64_t c = 0; c < std::ssize(of.measures); ++c)
            columns.push_back(blocks.means(sums.view(), counts.view(), c * groups, groups));
        return columns;
    };
    const auto at_start = drawn("/start"), at_best = drawn("/best");
    std::vector<Gain> gains;
    for (size_t n = 0; n < of.measures.size(); ++n) {
        const std::string measure = of.measures[n];
        const double first = value_of(start, measure), best = value_of(kept, measure);
        Gain& gain = gains.emplace_back(Gain{.layer = layer,
                                             .measure = measure,
                                             .start = first,
                                             .kept = analysis::with_interval(best, at_best[n]),
                                             .blocks = blocks.blocks(),
                                             .sequences = blocks.sequences()});
        if (measure != "oracle_mass")
            gain.gain = analysis::with_interval(best - first,
                                                measure::differences(at_best[n], at_start[n]));
    }
    return gains;
}

/// The evaluation before the first step, the best one and the last one, each once.
void add_evaluations(int64_t layer, const std::vector<Evaluation>& all, size_t best,
                     const std::vector<Gain>& gains, std::vector<Evaluated>& to) {
    for (size_t n : std::set{size_t{0}, best, all.size() - 1}) {
        Evaluated& of = to.emplace_back(
            Evaluated{.layer = layer, .step = all[n].step, .is_kept = n == best, .values = all[n]});
        for (size_t m = 0; m < std::size(kMeasures); ++m) {
            of.measures[m] = {all[n].*kMeasures[m].value, NAN, NAN};
            for (const Gain& gain : gains)
                if (of.is_kept && gain.measure == kMeasures[m].metric) of.measures[m] = gain.kept;
        }
    }
}

LayerFindings read_layer(const io::ResultsReader& results, int64_t layer) {
    const std::string group = concat("/fit/", layer);
    const auto count = [&](const char* name) {
        return static_cast<int64_t>(results.number(group, name));
    };
    LayerFindings of{.layer = layer,
                     .window = recorded_window(results, group),
                     .split = results.text(group, "split"),
                     .warmup_steps = count("warmup_steps"),
                     .train_queries = count("train_queries"),
                     .held_out_queries = count("held_out_queries"),
                     .rows_counted = count("rows_counted"),
                     .dead_heads = count("dead_heads"),
                     .index_flops = results.number(group, "index_flops"),
                     .index_bytes = results.number(group, "index_bytes"),
                     .first_forced_mass = results.number(group, kFirstForced)};
    for (const UntrainedMeasure& measure : kUntrained)
        of.untrained.*measure.value = results.number(group, measure.name);
    return of;
}

/// Starts in closed form, and what is kept, beside what nobody trains.
std::vector<Learned> learned(const io::ResultsReader& results, const Findings& found) {
    const bool closed_form =
        recorded_options<FitOptions>(results.run().options).start != Start::normal;
    std::vector<Learned> all;
    for (const Evaluated& e : found.evaluations) {
        const bool is_start = e.step == 0 && closed_form && !e.is_kept;
        if (!is_start && !e.is_kept) continue;
        const LayerFindings& layer =
            *std::ranges::find(found.layers, e.layer, &LayerFindings::layer);
        Learned& of = all.emplace_back(Learned{e.layer, is_start ? "the start" : "what is kept",
                                               e.values.block_recall, e.values.mass_kept,
                                               layer.untrained.random_recall});
        if (e.is_kept)
            of.rivals = {{"window", layer.untrained.window_mass},
                         {"mean-key", layer.untrained.mean_key_mass}};
    }
    return all;
}

}  // namespace

std::optional<bool> Gain::is_distinguishable() const {
    if (!gain || std::isnan(gain->low)) return std::nullopt;
    return gain->low > 0 || gain->high < 0;
}

Findings make_findings(const io::ResultsReader& results) {
    Findings found;
    for (const std::string& name : results.list("/fit")) {
        const int64_t layer = std::stoll(name);
        const std::vector<Evaluation> all = read_evaluations(results, layer);
        const size_t best = read_best(results, layer);
        LayerFindings& of = found.layers.emplace_back(read_layer(results, layer));
        of.best_step = all[best].step;
        of.last_step = all.back().step;
        std::vector<Gain> gains;
        for (const OfBlocks& kind : kOfBlocks)
            for (const Gain& gain : gains_of(results, layer, kind, all.front(), all[best]))
                gains.push_back(gain);
        add_evaluations(layer, all, best, gains, found.evaluations);
        found.gains.insert(found.gains.end(), gains.begin(), gains.end());
        const measure::DrawnBlocks blocks(results, blocks_group(layer, kOfBlocks.front()));
        if (found.intervals.empty() || blocks.can_draw())
            found.intervals = blocks.text(results.run().seed);
        found.has_intervals |= blocks.can_draw();
    }
    found.weak = find_weak(learned(results, found));
    return found;
}

}  // namespace msa::experiments::fit
