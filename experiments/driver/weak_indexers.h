// SPDX-License-Identifier: MIT
// Indexers that keep less than choices that nobody trained, or hardly more of the oracle's blocks
// than chance: as a table and in words.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "experiments/report/table.h"

namespace msa::experiments {

/// An indexer's choice in a layer, and untrained choices to compare it with.
struct Learned {
    static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
    struct Rival {
        std::string name;
        double mass = kUnknown;
    };
    int64_t layer = 0;
    std::string name;  // "index", "the start"
    double recall = kUnknown, mass = kUnknown;
    double random_recall = kUnknown;  // of blocks by chance
    std::vector<Rival> rivals = {};   // untrained, of as many blocks

    /// Less than a tenth of the way from chance to all of the oracle's blocks.
    bool is_near_random() const;
    /// The rival that keeps most, if over 0.005 more than this; else none.
    const Rival* better() const;
};

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
/// Names the indexers of both findings, and what to try; empty if there are none.
std::string weak_note(const std::vector<WeakIndexer>&, const std::string& remedy);

}  // namespace msa::experiments
