// SPDX-License-Identifier: MIT
#include "experiments/driver/learned_note.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <ostream>

#include "core/error.h"
#include "experiments/driver/table.h"

namespace msa::experiments {
namespace {

using nlohmann::ordered_json;

constexpr double kNear = 0.1, kLess = 0.005;
constexpr const char *kNearRandom = "near random", *kBelow = "below untrained";

std::string number(const ordered_json& of, const char* name) { return fixed_text(of[name], 3); }

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

ordered_json weak_indexers(const std::vector<Learned>& all) {
    ordered_json weak = ordered_json::array();
    for (const Learned& of : all) {
        const ordered_json about{{"layer", of.layer}, {"selector", of.name}};
        if (of.is_near_random()) {
            ordered_json& row = weak.emplace_back(about);
            row.update({{"finding", kNearRandom},
                        {"block_recall", of.recall},
                        {"random_recall", of.random_recall}});
        }
        if (const Learned::Rival* rival = of.better()) {
            ordered_json& row = weak.emplace_back(about);
            row.update({{"finding", kBelow},
                        {"mass_kept", of.mass},
                        {"rival", rival->name},
                        {"rival_mass_kept", rival->mass}});
        }
    }
    return weak;
}

void print_weak_indexers(const ordered_json& weak, const std::string& remedy, std::ostream& out) {
    if (weak.empty()) return;
    std::string near, below;
    for (const ordered_json& row : weak) {
        const bool is_near = row["finding"] == kNearRandom;
        std::string& text = is_near ? near : below;
        text += concat(text.empty() ? "" : "; ", row["selector"].get<std::string>(), " in layer ",
                       row["layer"].get<int64_t>(), ", ");
        text += is_near ? concat(number(row, "block_recall"), " (by chance ",
                                 number(row, "random_recall"), ")")
                        : concat(number(row, "mass_kept"), " (", row["rival"].get<std::string>(),
                                 " ", number(row, "rival_mass_kept"), ")");
    }
    if (!near.empty())
        print_paragraph(out, "Recall hardly above that of blocks by chance: " + near + ".");
    if (!below.empty())
        print_paragraph(out, "Keeps less mass than blocks that nobody trained: " + below + ".");
    print_paragraph(out, "What to try there: " + remedy + ".");
}

}  // namespace msa::experiments
