// SPDX-License-Identifier: MIT
#include "experiments/measure/ties.h"

#include <utility>
#include <vector>

#include "analysis/tie_margin.h"
#include "core/error.h"
#include "core/select/policy.h"
#include "experiments/driver/options.h"
#include "experiments/report/text.h"

namespace msa::experiments::measure {
namespace {

constexpr double kNarrow = 0.01;  // share of queries from which ties are printed
constexpr double kSays = 0.5;     // and from which a choice is said to say nothing

/// Of the Index Branch's scores; absent for other selectors.
Tensor<double, 2> rounding_of(const ChunkView& of, const Choice& choice) {
    if (name_of_label(choice.selector) != "index") return {};
    return analysis::index_score_rounding(of.problem, host_view(of.host_index_q),
                                          of.view().index_k.host());
}

std::string percent_text(double share) { return fixed_text(100 * share, 1) + " %"; }

/// The layers that a sentence about one choice names, with their shares.
using Layers = std::vector<std::pair<std::string, std::string>>;  // by choice, in their order

void add_layer(Layers& to, const std::string& choice, const std::string& layer) {
    for (auto& [name, layers] : to)
        if (name == choice) {
            layers += ", " + layer;
            return;
        }
    to.emplace_back(choice, layer);
}

}  // namespace

void add_ties(const MeasuredChunk& chunk, const Choice& choice, View<const float, 3> scores,
              Tally& to) {
    const Tensor<double, 2> rounding = rounding_of(chunk.queries, choice);
    to.sums.add(chunk.blocks, [&](const BlockRows& of) {
        analysis::TieMargin ties(chunk.problem.kv_heads);
        ties.add(of.problem, choice.used, of.of(chunk.kinds), of.of(scores),
                 rounding.data() ? of.of(rounding) : View<const double, 2>());
        return States{{choice.key + "/ties", ties.state()}};
    });
}

void write_ties(const Tally& tally, const std::string& key, int64_t groups, Metrics& to) {
    const auto ties = tally.total(key + "/ties", analysis::TieMargin(groups));
    to.add("tied", ties.tied());
    to.add("tied_by_rounding", ties.tied_by_rounding());
    to.add("all_tied", ties.all_tied());
}

std::string ties_text(const std::vector<Tie>& ties) {
    Layers all_tied, narrow;
    for (const Tie& of : ties) {
        const std::string layer = std::to_string(of.layer);
        if (of.all >= kSays)
            add_layer(all_tied, of.choice, concat(layer, " (", percent_text(of.all), ")"));
        else if (of.by_rounding >= kNarrow)
            add_layer(narrow, of.choice,
                      concat(layer, " (", percent_text(of.by_rounding),
                             ", exactly equal: ", percent_text(of.tied), ")"));
    }
    std::string text;
    for (const auto& [choice, layers] : all_tied)
        add_item(text, "\n", choice, " says nothing of the queries in layer ", layers,
                 ": all their candidates have one score, and the lowest block ids are kept.");
    for (const auto& [choice, layers] : narrow)
        add_item(text, "\n", choice,
                 " decides queries by scores that are equal or within the rounding of their "
                 "float sums, in layer ",
                 layers, ": another order of sums, as in another batch, may choose others.");
    return text;
}

}  // namespace msa::experiments::measure
