// SPDX-License-Identifier: MIT
// The options of msa-compare, checked as far as possible without the file.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/driver/run_options.h"

namespace msa::experiments::compare {

/// The query heads that share a choice of blocks.
enum class Sharing : uint8_t { head, group, layer };
/// What varies in addition to selector and budget.
enum class Ablation : uint8_t { none, block_size, forced, window };

/// Tokens that a query may attend to, as given in --budgets.
struct Budget {
    std::string asked;  // "1024" or "0.1"
    double value = 0;
    bool is_share = false;  // of the longest sequence
    /// In tokens, at most `context`.
    int64_t tokens(int64_t context) const;
};
/// "512" tokens, or a share "0.1". InputError naming --budgets.
Budget parse_budget(const std::string& item);

struct CompareOptions : RunOptions, ComputeOptions, QueryOptions, UnitOptions {
    std::vector<std::string> selectors;  // empty: all that the file has operands for
    std::vector<std::string> asked;      // the budgets as asked for
    std::vector<Budget> budgets;
    Ablation ablation = Ablation::none;
    int64_t block_size = 128;
    int64_t forced_local = 1;
    std::vector<int64_t> forced_first{0};  // ascending; each is a setting
    bool forced_outside = false;           // forced blocks come on top of the budget
    Sharing sharing = Sharing::group;
    bool decode = false;
    int64_t prompt = 0;  // decode phase behind so many tokens; 0: prefill phase
};

/// The table of the options, bound to `o`.
OptionTable option_table(CompareOptions& o);

const char* to_string(Sharing);
const char* to_string(Ablation);

/// Nothing if help or version was requested. Throws InputError.
std::optional<CompareOptions> parse_compare_options(std::span<const std::string> args,
                                                    std::ostream& out);

}  // namespace msa::experiments::compare
