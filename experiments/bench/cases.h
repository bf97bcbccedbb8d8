// SPDX-License-Identifier: MIT
#pragma once

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
    Source captured = {};  // of all operands; absent: they are made up
};

/// The shapes that the options ask for, in their order; captured layers bring their operands along.
/// Lengths of packs follow from the seed.
std::vector<Case> make_cases(const BenchOptions&);

}  // namespace msa::experiments::bench
