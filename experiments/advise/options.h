// SPDX-License-Identifier: MIT
// The options of msa-advise, checked as far as possible without the file.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/driver/price.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments::advise {

struct AdviseOptions : RunOptions, ComputeOptions, QueryOptions, PricingOptions, TargetOptions {
    AdviseOptions() { sample_queries = 1024; }

    // The grid: every selector with every size.
    std::vector<std::string> selectors;  // empty: the default ones that the file has operands for
    std::vector<int64_t> block_sizes{32, 64, 128}, top_ks{4, 8, 16, 32};
    std::vector<int64_t> forced_first{0, 1}, forced_local{1, 2};
};

/// The table of the options, bound to `o`.
OptionTable option_table(AdviseOptions& o);

/// Nothing if help or version was requested. Lists of sizes are ascending without repeats. Throws
/// InputError.
std::optional<AdviseOptions> parse_advise_options(std::span<const std::string> args,
                                                  std::ostream& out);

}  // namespace msa::experiments::advise
