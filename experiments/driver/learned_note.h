// SPDX-License-Identifier: MIT
// Finds an indexer that keeps less than choices that nobody trained, or hardly more of the oracle's
// blocks than chance.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace msa::experiments {

/// An indexer's choice in a layer, and the choices beside it.
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

/// [{"layer", "selector", "finding", ...}] of those that are near random, or below a rival.
nlohmann::ordered_json weak_indexers(const std::vector<Learned>&);

/// Prints weak_indexers() in a paragraph for each finding, and what to try; nothing if there are
/// none.
void print_weak_indexers(const nlohmann::ordered_json& weak, const std::string& remedy,
                         std::ostream& out);

}  // namespace msa::experiments
