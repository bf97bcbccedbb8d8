// SPDX-License-Identifier: MIT
// The options of msa-reuse, checked as far as possible without the file.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/driver/price.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments::reuse {

struct ReuseOptions : RunOptions,
                      ComputeOptions,
                      SizeOptions,
                      OracleOptions,
                      QueryOptions,
                      PricingOptions,
                      TargetOptions {
    ReuseOptions() { sample_queries = 1024; }

    std::string selector = "index";
    std::vector<int64_t> every{2, 4};
    std::vector<std::string> groups;  // "3-5": as grouped() takes them
};

/// The table of the options, bound to `o`.
OptionTable option_table(ReuseOptions& o);

/// Nothing if help or version was requested. Throws InputError.
std::optional<ReuseOptions> parse_reuse_options(std::span<const std::string> args,
                                                std::ostream& out);

}  // namespace msa::experiments::reuse
