// SPDX-License-Identifier: MIT
// The options of msa-analyze, checked as far as possible without the file.
#pragma once

#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/driver/run_options.h"

namespace msa::experiments::analyze {

struct AnalyzeOptions : RunOptions,
                        ComputeOptions,
                        SizeOptions,
                        OracleOptions,
                        QueryOptions,
                        UnitOptions {
    std::vector<int64_t> forced_first{0};  // ascending; `rule` has the first one
    std::vector<std::string> selectors;    // empty: decided by what the file holds
    int64_t sink_tokens = 4;
    std::vector<std::string> dump;  // outputs, mass, scores

    bool dumps(const std::string& what) const;
};

/// The table of the options, bound to `o`.
OptionTable option_table(AnalyzeOptions& o);

/// Nothing if help or version was requested. Throws InputError.
std::optional<AnalyzeOptions> parse_analyze_options(std::span<const std::string> args,
                                                    std::ostream& out);

}  // namespace msa::experiments::analyze
