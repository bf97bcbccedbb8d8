// SPDX-License-Identifier: MIT
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/problem.h"
#include "experiments/bench/options.h"

namespace msa::experiments::bench {

/// One shape that stages are timed on.
struct Case {
    std::string kind;  // "decode"
    std::string name;  // "decode 8 x 1 over 128K"
    Problem problem;
    int64_t top_k = 0;
    Source captured = {};  // of all operands; absent: synthetic ones
};

/// The cases that the options request, in order; captured layers come with their operands. Lengths
/// of packs follow from the seed.
std::vector<Case> make_cases(const BenchOptions&);
/// A decode step, a chunk or a mixture with BenchOptions::capacity keys a sequence; absent where
/// that is not timed.
std::optional<Problem> up_to_capacity(const Case&, const BenchOptions&);

}  // namespace msa::experiments::bench
