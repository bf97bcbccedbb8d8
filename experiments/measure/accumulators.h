// SPDX-License-Identifier: MIT
// What the loop sums of every choice of blocks, and the numbers that are read from the sums: one
// list for all programs. A metric that is added to it (and to analysis/metrics.h) is in the tables
// of every program that measures.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/measure/drawn.h"
#include "experiments/measure/measure.h"

namespace msa::experiments::measure {

/// A choice of blocks for the queries of a block, and attention over it.
struct ChosenRows {
    const Task& task;
    const MeasuredChunk& chunk;
    const BlockRows& rows;          // of the chunk
    View<const int32_t, 3> ids;     // [Nq, Hkv, k]
    View<const int32_t, 3> oracle;  // likewise; absent where the task has none
    View<const double, 2> squared;  // [Nq, Hkv] |o_choice - o_dense|^2, over the group's heads
    View<const float, 2> lse;       // [Nq, Hq] of attention over the choice
    View<const float, 3> out;       // [Nq, Hq, dh] likewise; absent where errors are by group
};

/// What a program measures of its choices.
struct Measured {
    bool recalls = true;    // against an oracle
    bool attention = true;  // over the choice
    ErrorOf error_of = ErrorOf::head;
    bool ties = false;  // with scores
    bool entropies = false;
};

/// A metric of analysis/metrics.h, and how its value is read from the sums of this name.
struct ChoiceNumber {
    const char* metric;
    Numbers (*read)(const LayerNumbers&, const std::string& sums);
};

struct Accumulator {
    const char* sums;  // its name behind that of the choice; "dense/...": of dense attention
    bool (*is_measured)(const Measured&);
    std::vector<ChoiceNumber> numbers;
    /// The sums of a choice for some queries; nothing where the task has none. Absent where an
    /// observer adds them. Called by several threads, must not throw.
    std::optional<analysis::State> (*add)(const ChosenRows&) = nullptr;

    std::string sums_of(const std::string& choice) const;
};

std::span<const Accumulator> list_accumulators();

}  // namespace msa::experiments::measure
