// SPDX-License-Identifier: MIT
// The options of msa-precision, checked as far as that goes without the file.
#pragma once

#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/number/quantize.h"
#include "experiments/driver/run_options.h"

namespace msa::experiments::precision {

struct PrecisionOptions : RunOptions, ComputeOptions, SizeOptions, OracleOptions, QueryOptions {
    PrecisionOptions() { sample_queries = 512; }

    // The targets.
    double keep = 0.99, error = 0.01;
    // Names, as the record of a run has them; all of them once the options are parsed.
    std::vector<std::string> formats, scales, rotations;
};

inline constexpr const char* kHadamard = "hadamard";

/// The table of the options, bound to `o`.
OptionTable option_table(PrecisionOptions& o);

/// Nothing when help or version was asked for. Throws InputError.
std::optional<PrecisionOptions> parse_precision_options(std::span<const std::string> args,
                                                        std::ostream& out);

/// What is measured: full precision (f32, neither scaled nor rotated), then each format with each
/// of the scales that it goes with, each with each of the rotations. `scales` are those of the
/// formats that go with several. InputError where a format is left without a scale that it needs.
std::vector<Precision> precisions(const std::vector<std::string>& formats,
                                  const std::vector<std::string>& scales,
                                  const std::vector<std::string>& rotations);

}  // namespace msa::experiments::precision
