// SPDX-License-Identifier: MIT
#include "experiments/advise/advice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace msa::experiments::advise {
namespace {

/// `selectors`: those of the run, which a setting names by number.
std::vector<Setting> read_settings(const io::ResultsReader& results, const std::string& layer,
                                   const std::vector<std::string>& selectors) {
    const auto table = results.read<int64_t, 2>("/advise/" + layer + "/settings");
    std::vector<Setting> settings;
    for (int64_t s = 0; s < table.extent(0); ++s)
        settings.push_back({selectors.at(static_cast<size_t>(table(s, 0))),
                            table(s, 1),
                            {table(s, 2), table(s, 4), table(s, 3)}});
    return settings;
}

bool reaches(const AdviseOptions& asked, const Setting& setting, double mass, double error) {
    if (asked.keep) return mass >= *asked.keep;
    if (asked.error) return error <= *asked.error;
    return setting.tokens() <= *asked.budget;
}

LayerAdvice read_layer(const io::ResultsReader& results, const std::string& name,
                       const Advice& advice) {
    LayerAdvice layer;
    layer.layer = std::stoll(name);
    const std::string group = "/advise/" + name, sizes = "/layers/" + name;
    layer.dense = read_cost(results, group, "dense");
    layer.longest_sequence = static_cast<int64_t>(results.number(sizes, "longest_sequence"));
    const measure::LayerNumbers of(results, name);
    layer.blocks = of.drawn().blocks();
    layer.queries = of.drawn().queries();
    layer.sequences = of.drawn().sequences();
    const Tensor<double, 2> costs = results.read<double, 2>(group + "/costs");
    for (size_t n = 0; n < advice.settings.size(); ++n) {
        const auto s = static_cast<int64_t>(n);
        SettingNumbers& kept = layer.kept.emplace_back(of, std::to_string(n));
        kept.cost = {costs(s, 0), costs(s, 1), costs(s, 2)};
        kept.order = kOrders[static_cast<size_t>(costs(s, 3))];
        kept.union_blocks = costs(s, 4);
        kept.enough =
            reaches(advice.asked, advice.settings[n], kept.mass().least(), kept.error().most());
    }
    return layer;
}

/// Of some layers together: mean over layers, and the cost of the layers of the model that they
/// stand for, beside those with a window.
SettingNumbers together(const std::vector<const SettingNumbers*>& layers, const Advice& advice) {
    SettingNumbers all;
    static_cast<measure::NumbersByMetric&>(all) =
        measure::NumbersByMetric::mean({layers.begin(), layers.end()});
    all.order = layers.front()->order;
    for (const SettingNumbers* layer : layers) {
        all.cost = all.cost + layer->cost;
        if (layer->order != all.order) all.order.clear();
    }
    all.cost = all.cost * advice.share() + cost_of(advice.windowed);
    if (layers.size() == 1) all.union_blocks = layers.front()->union_blocks;
    return all;
}

bool is_sparse(const LayerAdvice& layer, size_t setting) {
    const SettingNumbers& kept = layer.kept[setting];
    return kept.enough && kept.cost.seconds < layer.dense.seconds;
}

/// The setting for the layers where `sparse` holds; the others stay dense.
template <typename Sparse>
Choice choose(const Advice& advice, size_t setting, Sparse sparse) {
    Choice choice;
    choice.setting = setting;
    std::vector<const SettingNumbers*> kept;
    Cost dense;
    for (const LayerAdvice& layer : advice.layers) {
        const bool is = sparse(layer);
        (is ? choice.sparse : choice.dense).push_back(layer.layer);
        if (is)
            kept.push_back(&layer.kept[setting]);
        else
            dense = dense + layer.dense;
    }
    if (kept.empty()) return choice;
    choice.kept = together(kept, advice);
    choice.kept.cost = choice.kept.cost + dense * advice.share();
    const size_t draws = choice.kept.numbers("mass_kept").draws.size();
    int64_t good = 0;
    for (size_t n = 0; n < draws; ++n)
        good += std::ranges::all_of(kept, [&](const SettingNumbers* layer) {
            return reaches(advice.asked, advice.settings[setting],
                           layer->numbers("mass_kept").draws[n],
                           layer->numbers("group_output_error").draws[n]);
        });
    choice.confidence = static_cast<double>(good) / static_cast<double>(draws);
    return choice;
}

/// What is to be low: 1 - mass kept, or the output error under --error; NaN is worst.
double loss(const AdviseOptions& asked, const SettingNumbers& kept) {
    const double lost = asked.error ? kept.error().value : 1 - kept.mass().value;
    return std::isnan(lost) ? std::numeric_limits<double>::infinity() : lost;
}

/// The better one first: by cost and then by loss; under --budgets by loss and then by cost.
bool better(const AdviseOptions& asked, const SettingNumbers& a, const SettingNumbers& b) {
    const std::pair by_cost{a.cost.seconds, loss(asked, a)}, other{b.cost.seconds, loss(asked, b)};
    if (!asked.budget) return by_cost < other;
    return std::pair(by_cost.second, by_cost.first) < std::pair(other.second, other.first);
}

std::vector<size_t> pareto_front(const Advice& advice, std::vector<size_t> candidates) {
    const auto key = [&](size_t s) {
        return std::pair{advice.all[s].cost.seconds, loss(advice.asked, advice.all[s])};
    };
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](size_t a, size_t b) { return key(a) < key(b); });
    std::vector<size_t> front;
    double least = std::numeric_limits<double>::infinity();
    for (size_t s : candidates) {
        if (key(s).second >= least) continue;
        least = key(s).second;
        front.push_back(s);
    }
    return front;
}

/// Of the candidates, the one for all layers that comes nearest to the target, and why none is it.
void find_nearest(const std::vector<size_t>& candidates, Advice& advice) {
    const AdviseOptions& asked = advice.asked;
    const auto everywhere = [](const LayerAdvice&) { return true; };
    bool any_enough = false;
    for (const LayerAdvice& layer : advice.layers)
        for (size_t s : candidates) any_enough |= layer.kept[s].enough;
    advice.why_none = any_enough
                          ? "no setting that reaches the target costs less than dense attention"
                          : "no setting reaches the target on any layer";
    const auto distance = [&](size_t s) {
        const SettingNumbers& all = advice.all[s];
        if (any_enough) {
            const bool enough =
                std::any_of(advice.layers.begin(), advice.layers.end(),
                            [&](const auto& layer) { return layer.kept[s].enough; });
            return enough ? all.cost.seconds : std::numeric_limits<double>::infinity();
        }
        return asked.budget ? static_cast<double>(advice.settings[s].tokens()) : loss(asked, all);
    };
    const size_t nearest =
        *std::min_element(candidates.begin(), candidates.end(),
                          [&](size_t a, size_t b) { return distance(a) < distance(b); });
    advice.nearest = choose(advice, nearest, everywhere);
}

void find_bound(Advice& advice) {
    for (size_t s = 0; s < advice.settings.size(); ++s) {
        const SettingNumbers& all = advice.all[s];
        const Setting& setting = advice.settings[s];
        if (!is_bound(setting) ||
            !reaches(advice.asked, setting, all.mass().least(), all.error().most()))
            continue;
        if (!advice.bound || setting.tokens() < advice.settings[*advice.bound].tokens())
            advice.bound = s;
    }
}

}  // namespace

Advice make_advice(const io::ResultsReader& results) {
    Advice advice;
    advice.asked = recorded_options<AdviseOptions>(results.run().options);
    advice.seed = results.run().seed;
    const std::vector<std::string> layers = results.list("/advise");
    advice.settings = read_settings(results, layers.front(), advice.asked.selectors);
    for (const std::string& name : layers) {
        advice.layers.push_back(read_layer(results, name, advice));
        advice.dense = advice.dense + advice.layers.back().dense;
    }
    advice.windowed = read_windowed(results);
    advice.dense = advice.dense * advice.share() + cost_of(advice.windowed);
    std::vector<size_t> candidates(advice.settings.size());
    std::iota(candidates.begin(), candidates.end(), size_t{0});
    for (size_t s : candidates) {
        std::vector<const SettingNumbers*> of;
        for (const LayerAdvice& layer : advice.layers) of.push_back(&layer.kept[s]);
        advice.all.push_back(together(of, advice));
    }
    const auto bound = [&](size_t s) { return is_bound(advice.settings[s]); };
    if (!std::all_of(candidates.begin(), candidates.end(), bound)) std::erase_if(candidates, bound);
    advice.front = pareto_front(advice, candidates);
    find_bound(advice);
    for (size_t s : candidates) {
        const Choice choice =
            choose(advice, s, [&](const LayerAdvice& layer) { return is_sparse(layer, s); });
        if (choice.sparse.empty()) continue;
        if (!advice.recommended || better(advice.asked, choice.kept, advice.recommended->kept))
            advice.recommended = choice;
    }
    if (!advice.recommended) find_nearest(candidates, advice);
    const Choice& shown = advice.recommended ? *advice.recommended : advice.nearest;
    for (int64_t layer : shown.sparse)
        advice.sinks.push_back(measure::read_sink(results, std::to_string(layer),
                                                  std::to_string(shown.setting),
                                                  advice.settings[shown.setting].selector));
    for (LayerAdvice& layer : advice.layers) {
        layer.sparse = advice.recommended && is_sparse(layer, advice.recommended->setting);
        for (size_t s : candidates) {
            if (!is_sparse(layer, s)) continue;
            if (!layer.recommended ||
                better(advice.asked, layer.kept[s], layer.kept[*layer.recommended]))
                layer.recommended = s;
        }
    }
    return advice;
}

}  // namespace msa::experiments::advise
