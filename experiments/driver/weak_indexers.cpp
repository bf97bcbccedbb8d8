// SPDX-License-Identifier: MIT
#include "experiments/driver/weak_indexers.h"

#include <cmath>

#include "core/error.h"
#include "experiments/report/columns.h"
#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

constexpr double kNear = 0.1, kLess = 0.005;
constexpr const char *kByChance = "near random", *kUntrainedKeepMore = "below untrained";

report::Column only_of(report::Column column, const char* finding) {
    column.null = concat("only of what is ", finding);
    return column;
}

std::optional<analysis::Estimate> without_ends(const std::optional<double>& value) {
    if (!value) return std::nullopt;
    return analysis::Estimate{*value, NAN, NAN};
}

const report::TableOf<WeakIndexer> kWeak{
    "weak_indexers",
    "indexers that find hardly more than chance, or keep less than choices that nobody trained",
    3,
    {{report::hidden(report::kLayer), &WeakIndexer::layer},
     {{"indexer", "", "the selector; of a fit, its start or what is kept"}, &WeakIndexer::name},
     {{"finding", "",
       "near random: its recall is less than a tenth of the way from chance to all of the oracle's "
       "blocks. below untrained: it keeps less mass than the rival, by more than 0.005"},
      &WeakIndexer::finding},
     {only_of(report::hidden(report::metric("block_recall")), kByChance),
      [](const WeakIndexer& of) { return without_ends(of.recall); }},
     {only_of(kRandomRecall, kByChance), &WeakIndexer::random_recall},
     {only_of(report::hidden(report::metric("mass_kept")), kUntrainedKeepMore),
      [](const WeakIndexer& of) { return without_ends(of.mass); }},
     {only_of({"rival", "", "the untrained selector of as many blocks that keeps most"},
              kUntrainedKeepMore),
      &WeakIndexer::rival},
     {only_of({"rival_mass_kept", "probability", "mass_kept by the rival"}, kUntrainedKeepMore),
      &WeakIndexer::rival_mass}}};

std::string three(double value) { return fixed_text(value, 3); }

}  // namespace

bool Learned::is_near_random() const {
    return recall < random_recall + kNear * (1 - random_recall);
}

const Learned::Rival* Learned::better() const {
    const Rival* best = nullptr;
    for (const Rival& rival : rivals)
        if (rival.mass > (best == nullptr ? mass + kLess : best->mass)) best = &rival;
    return best;
}

std::vector<WeakIndexer> find_weak(const std::vector<Learned>& all) {
    std::vector<WeakIndexer> weak;
    for (const Learned& of : all) {
        if (of.is_near_random())
            weak.push_back({.layer = of.layer,
                            .name = of.name,
                            .finding = kByChance,
                            .recall = of.recall,
                            .random_recall = of.random_recall});
        if (const Learned::Rival* rival = of.better())
            weak.push_back({.layer = of.layer,
                            .name = of.name,
                            .finding = kUntrainedKeepMore,
                            .mass = of.mass,
                            .rival_mass = rival->mass,
                            .rival = rival->name});
    }
    return weak;
}

report::Shape weak_shape() { return kWeak.shape(); }

report::Table weak_table(const std::vector<WeakIndexer>& weak) { return kWeak.of(weak); }

std::string weak_note(const std::vector<WeakIndexer>& weak, const std::string& remedy) {
    if (weak.empty()) return "";
    std::string near, below;
    for (const WeakIndexer& of : weak) {
        std::string& text = of.recall ? near : below;
        add_item(text, "; ", of.name, " in layer ", of.layer, ", ");
        text += of.recall
                    ? concat(three(*of.recall), " (by chance ", three(*of.random_recall), ")")
                    : concat(three(*of.mass), " (", *of.rival, " ", three(*of.rival_mass), ")");
    }
    if (!near.empty()) near = "Recall hardly above that of blocks by chance: " + near + ".\n";
    if (!below.empty()) below = "Keeps less mass than blocks that nobody trained: " + below + ".\n";
    return concat(near, below, "What to try there: ", remedy, ".");
}

}  // namespace msa::experiments
