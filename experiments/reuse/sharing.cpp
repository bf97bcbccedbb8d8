// SPDX-License-Identifier: MIT
#include "experiments/reuse/sharing.h"

#include <algorithm>
#include <limits>
#include <map>

#include "core/select/selector.h"
#include "experiments/report/text.h"
#include "experiments/reuse/layer.h"

namespace msa::experiments::reuse {
namespace {

/// Whether the worse end of the interval meets the bound.
bool reaches(const ReuseOptions& asked, const NumbersByMetric& kept) {
    if (asked.keep) return kept["mass_kept"].least() >= *asked.keep;
    if (asked.error) return kept["output_error"].most() <= *asked.error;
    return kept["mass_lost"].most() <= *asked.lose;
}

/// A layer with the ids of `choice`.
NumbersByMetric kept_with(const measure::LayerNumbers& of, const std::string& choice,
                          const measure::Numbers& own_mass) {
    NumbersByMetric kept(of, choice);
    kept.add("mass_lost", own_mass - kept.numbers("mass_kept"));
    kept.add("own_recall", of.recall(choice + "/own_recall", "block_recall"));
    return kept;
}

std::vector<AtDistance> by_distance(const Findings& findings) {
    std::map<int64_t,
             std::pair<std::vector<const NumbersByMetric*>, std::vector<const NumbersByMetric*>>>
        at_distance;
    for (const Pair& pair : findings.pairs) {
        auto& [kept, own] = at_distance[pair.distance()];
        const size_t target = static_cast<size_t>(
            std::lower_bound(findings.layers.begin(), findings.layers.end(), pair.target) -
            findings.layers.begin());
        kept.push_back(&pair.kept);
        own.push_back(&pair_of(findings, target, target).kept);
    }
    std::vector<AtDistance> all;
    for (const auto& [distance, of] : at_distance)
        all.push_back({distance, std::ssize(of.first), NumbersByMetric::mean(of.first),
                       NumbersByMetric::mean(of.second)});
    return all;
}

struct LayerCosts {
    Cost dense, own, reused;
};

void add(Findings& findings, const std::vector<LayerCosts>& costs, Role role,
         const std::string& name, const LayerPattern& pattern) {
    Shared shared;
    shared.role = role;
    shared.name = name;
    shared.pattern = pattern;
    shared.cost = cost_of(findings.windowed);
    const std::vector<size_t> from = sources(pattern);
    std::vector<const NumbersByMetric*> kept;
    shared.each = true;
    shared.most_lost = -std::numeric_limits<double>::infinity();
    for (size_t t = 0; t < pattern.size(); ++t) {
        kept.push_back(&pair_of(findings, from[t], t).kept);
        shared.each &= reaches(findings.asked, *kept.back());
        shared.most_lost = std::max(shared.most_lost, (*kept.back())["mass_lost"].value);
        const LayerCosts& layer = costs[t];
        shared.cost = shared.cost + (pattern[t] ? layer.own : layer.reused);
        shared.sources.push_back(findings.layers[from[t]]);
        if (!pattern[t]) continue;
        shared.computing.push_back(findings.layers[t]);
        shared.selection = shared.selection + (layer.own - layer.reused);
    }
    shared.kept = NumbersByMetric::mean(kept);
    shared.mean = reaches(findings.asked, shared.kept);
    const Shared& own = findings.patterns.empty() ? shared : findings.patterns.front();
    shared.saved = own.selection - shared.selection;
    shared.of_own = shared.cost.seconds / own.cost.seconds;
    shared.of_dense = shared.cost.seconds / findings.dense.seconds;
    findings.patterns.push_back(std::move(shared));
}

/// Mass lost of each pair of layers; infinite where `allowed` does not hold.
template <typename Allowed>
Tensor<double, 2> losses(const Findings& findings, Allowed allowed) {
    const auto layers = std::ssize(findings.layers);
    Tensor<double, 2> loss({layers, layers});
    for (int64_t t = 0; t < layers; ++t)
        for (int64_t s = 0; s <= t; ++s) {
            const NumbersByMetric& kept =
                pair_of(findings, static_cast<size_t>(s), static_cast<size_t>(t)).kept;
            loss(s, t) =
                allowed(kept) ? kept["mass_lost"].value : std::numeric_limits<double>::infinity();
        }
    return loss;
}

void find_patterns(const std::vector<LayerCosts>& costs, Findings& findings) {
    const auto add_pattern = [&](Role role, const std::string& name, const LayerPattern& pattern) {
        add(findings, costs, role, name, pattern);
    };
    add_pattern(Role::own, "own ids", LayerPattern(findings.layers.size(), true));
    for (int64_t step : findings.asked.every) {
        const LayerPattern pattern = every(findings.layers, step);
        if (computing(pattern) == std::ssize(pattern))
            findings.sharing_nothing.push_back(step);
        else
            add_pattern(Role::asked, concat("every ", step), pattern);
    }
    if (const std::vector<std::string>& groups = findings.asked.groups; !groups.empty())
        add_pattern(Role::asked, concat("groups ", join(groups, ",")),
                    grouped(findings.layers, groups));
    const auto any = [](const NumbersByMetric&) { return true; };
    for (const auto& pattern : least_loss(losses(findings, any).view()))
        if (pattern) add_pattern(Role::best, concat("best of ", computing(*pattern)), *pattern);
    const auto reached = [&](const NumbersByMetric& kept) { return reaches(findings.asked, kept); };
    for (const auto& pattern : least_loss(losses(findings, reached).view())) {
        if (!pattern) continue;
        add_pattern(Role::each, "target in every layer", *pattern);
        break;
    }
    const auto mean = std::ranges::find_if(
        findings.patterns, [](const Shared& of) { return of.role == Role::best && of.mean; });
    if (mean == findings.patterns.end()) return;
    Shared of = *mean;
    of.role = Role::mean;
    of.name = "target in the mean";
    findings.patterns.push_back(std::move(of));
}

}  // namespace

const Pair& pair_of(const Findings& findings, size_t source, size_t target) {
    return findings.pairs[target * (target + 1) / 2 + source];
}

const Shared* Findings::find(Role role) const {
    const auto found = std::ranges::find(patterns, role, &Shared::role);
    return found == patterns.end() ? nullptr : &*found;
}

Findings make_findings(const io::ResultsReader& results) {
    Findings findings;
    findings.asked = recorded_options<ReuseOptions>(results.run().options);
    findings.seed = results.run().seed;
    findings.is_bound = make_selector(findings.asked.selector)->family() == Family::oracle;
    std::vector<LayerCosts> costs;
    const std::vector<std::string> names = results.list("/reuse");
    const auto count = static_cast<double>(names.size());
    for (const std::string& name : names) {
        const std::string group = "/reuse/" + name;
        findings.layers.push_back(std::stoll(name));
        findings.sinks.push_back(measure::read_sink(results, name, name, findings.asked.selector));
        const measure::LayerNumbers of(results, name);
        const measure::Numbers own_mass = of.recall(name + "/recall", "mass_kept");
        const auto from = results.read<int64_t, 1>(group + "/sources");
        for (int64_t s = 0; s < from.size(); ++s)
            findings.pairs.push_back({from(s), findings.layers.back(),
                                      kept_with(of, std::to_string(from(s)), own_mass)});
        const auto cost = [&](const char* of_what) {
            return read_cost(results, group, of_what) *
                   layers_share(findings.asked, std::ssize(names));
        };
        costs.push_back({cost("dense"), cost("own"), cost("reused")});
        findings.dense = findings.dense + costs.back().dense;
        const std::string floor = concat(kFloor, "/recall");
        findings.floor_mass += of.recall(floor, "mass_kept").all / count;
        findings.floor_error += of.error(concat(kFloor, "/output_error")).all / count;
        findings.oracle_mass += of.recall(floor, "oracle_mass").all / count;
        findings.blocks = of.drawn().blocks();
        findings.sequences = of.drawn().sequences();
        findings.queries = static_cast<int64_t>(results.number("/layers/" + name, "queries"));
        findings.longest_sequence =
            static_cast<int64_t>(results.number("/layers/" + name, "longest_sequence"));
    }
    findings.windowed = read_windowed(results);
    findings.dense = findings.dense + cost_of(findings.windowed);
    findings.missing = missing_layers(all_layers(findings.layers, findings.windowed));
    findings.distances = by_distance(findings);
    find_patterns(costs, findings);
    return findings;
}

}  // namespace msa::experiments::reuse
