// SPDX-License-Identifier: MIT
// The options of msa-compare, checked as far as that goes without the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/registry.h"
#include "core/selection.h"
#include "experiments/driver/operands.h"
#include "experiments/driver/options.h"

namespace msa::experiments::compare {

/// Which query heads share a choice of blocks.
enum class Sharing : uint8_t { head, group, layer };
/// What varies beside selector and budget.
enum class Ablation : uint8_t { none, block_size, forced, window };

/// Tokens that a query may attend to, as asked for.
struct Budget {
    std::string asked;  // "1024" or "0.1"
    double value = 0;
    bool is_share = false;  // of the longest sequence
    int64_t tokens(int64_t context) const;
};

struct CompareOptions {
    std::filesystem::path file, out;
    std::vector<int64_t> layers;         // empty: all
    std::vector<std::string> selectors;  // empty: all that the file has operands for
    std::vector<Budget> budgets;
    Ablation ablation = Ablation::none;
    int64_t block_size = 128;
    int64_t forced_local = 1, forced_first = 0;
    bool forced_outside = false;  // forced blocks come on top of the budget
    Sharing sharing = Sharing::group;
    int64_t prompt = 0;  // decode phase behind so many tokens; 0: prefill phase
    std::string backend = "cpu";
    BackendOptions backend_options;
    ElementChoice element;
    int64_t sample_queries = 0;  // 0: all
    bool resume = false, overwrite = false, json = false;
    uint64_t seed = 0;

    /// What decides the results, as JSON text: recorded, and compared by --resume.
    std::string identity() const;
};

const char* to_string(Sharing);
const char* to_string(Ablation);

/// Nothing when help or version was asked for. Throws InputError.
std::optional<CompareOptions> parse_compare_options(std::span<const std::string> args,
                                                    std::ostream& out);

}  // namespace msa::experiments::compare
