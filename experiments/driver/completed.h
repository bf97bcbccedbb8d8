// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>
#include <iosfwd>
#include <vector>

#include "core/io/results.h"

namespace msa::experiments {

/// A run whose results.h5 is whole: what a program, or msa-merge in its place, makes of it.
struct Completed {
    const io::ResultsReader& results;
    std::filesystem::path out;                  // the folder
    std::vector<std::filesystem::path> inputs;  // of the run
    bool json;                                  // print summary.json instead of the table
    int threads;                                // 0: all
    std::ostream& print;
};

}  // namespace msa::experiments
