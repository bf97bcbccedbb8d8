// SPDX-License-Identifier: MIT
// The indexers of driver/learned_note.h that are near random or below a rival, as a table and in
// words.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "experiments/driver/learned_note.h"
#include "experiments/report/table.h"

namespace msa::experiments {

struct WeakIndexer {
    int64_t layer = 0;
    std::string name, finding;
    std::optional<double> recall{}, random_recall{};  // of one that is near random
    std::optional<double> mass{}, rival_mass{};       // of one that is below a rival
    std::optional<std::string> rival{};
};
std::vector<WeakIndexer> find_weak(const std::vector<Learned>&);

inline const report::Column kRandomRecall{
    "random_recall", "share of blocks",
    "block recall of blocks by chance, the forced ones aside: its expected value"};

report::Shape weak_shape();
report::Table weak_table(const std::vector<WeakIndexer>&);
/// Both findings, and what to try; empty if there are none.
std::string weak_note(const std::vector<WeakIndexer>&, const std::string& remedy);

}  // namespace msa::experiments
