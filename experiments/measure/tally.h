// SPDX-License-Identifier: MIT
// What is known of a layer, or of a part of its queries, once they went by; and a layer of its
// parts.
#pragma once

#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "experiments/driver/run.h"
#include "experiments/measure/checks.h"
#include "experiments/measure/sums.h"

namespace msa::experiments::measure {

struct Tally {
    Sums sums;
    SelfChecks checks = {};
    /// Of accumulators that are too large to be kept block by block: counts over all queries.
    std::map<std::string, analysis::State> totals = {};
    /// What the program has to know of the layer to write its datasets, JSON.
    std::string about = "{}";

    struct Seconds {
        double select = 0, evaluate = 0;
    };
    std::map<std::string, Seconds> seconds = {};  // that each selector took

    /// /sums, /query_blocks and /checks.
    void write(io::UnitWriter&, const std::string& layer) const;
    /// An accumulator, given empty, with what it would have of all queries.
    template <typename Accumulator>
    Accumulator total(const std::string& name, Accumulator empty) const {
        if (const auto of = totals.find(name); of != totals.end())
            empty.join(of->second);
        else
            sums.total(name, empty);
        return empty;
    }
};

/// How a program that cuts layers writes one.
struct LayerForm {
    std::vector<const char*> rows;    // groups whose datasets have a row for each query
    std::vector<const char*> copied;  // groups that every part has alike
    /// The datasets that are made of the tally.
    void (*write)(const Tally&, const std::string& layer, io::UnitWriter&);
};

/// The tally, and what the program makes of it; of a part of a layer the sums, and in /state what
/// join_layer needs. Warns of undefined rows.
void write_tally(const Tally&, const LayerForm&, const LayerPart&, const Worker&, io::UnitWriter&);
/// Writes a layer, given the files of all its parts in the order of the queries. The activations
/// are not needed.
void join_layer(const std::vector<std::filesystem::path>& parts, const LayerForm&, io::UnitWriter&);

}  // namespace msa::experiments::measure
