// SPDX-License-Identifier: MIT
// The options of msa-analyze, checked as far as that goes without the file.
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

namespace msa::experiments::analyze {

struct AnalyzeOptions {
    std::filesystem::path file, out;
    std::vector<int64_t> layers;         // empty: all
    std::vector<std::string> selectors;  // empty: decided by what the file holds
    int64_t block_size = 128;
    SelectionRule rule;
    std::string backend = "cpu";
    BackendOptions backend_options;
    ElementChoice element;
    Range queries;               // packed tokens
    int64_t sample_queries = 0;  // 0: all
    int64_t sink_tokens = 4;
    bool all_rows = false;
    bool oracle_by_logit = false;
    bool oracle_without_local = false;
    bool dump_outputs = false, dump_mass = false, dump_scores = false;
    bool resume = false, overwrite = false, json = false;
    uint64_t seed = 0;

    /// What decides the results, as JSON text: recorded, and compared by --resume.
    std::string identity() const;
};

/// Nothing when help or version was asked for. Throws InputError.
std::optional<AnalyzeOptions> parse_analyze_options(std::span<const std::string> args,
                                                    std::ostream& out);

}  // namespace msa::experiments::analyze
