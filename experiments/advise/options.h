// SPDX-License-Identifier: MIT
// The options of msa-advise, checked as far as possible without the file.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/select/selector.h"
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

// The settings that msa-advise tries.

/// Whether the selector needs dense attention. Such a setting is a bound, not advice.
bool is_bound(const Setting&);

/// "mean-key, Bk 64, k 16, forced first 1, newest 2"
std::string setting_text(const Setting&);

/// All settings, ordered by selector, block size and k. Excluded: forced blocks that do not fit
/// into k, settings that a selector's own forced blocks make equal to another, and budgets above
/// `most` tokens. InputError naming `most` if none is left.
struct Grid {
    std::vector<Setting> settings;
    int64_t too_large = 0;  // settings of more than `most` tokens
    int64_t largest() const;
};
Grid make_grid(const AdviseOptions&, const std::vector<std::string>& selectors, int64_t most,
               const std::string& why_most);

}  // namespace msa::experiments::advise
