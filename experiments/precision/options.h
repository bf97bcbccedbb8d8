// SPDX-License-Identifier: MIT
// The options of msa-precision, checked as far as possible without the file.
#pragma once

#include <filesystem>
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
    std::filesystem::path indexer;  // results.h5 of a fit; empty: the file's own index operands
    // Names, as in a run's record; after parsing never empty.
    std::vector<std::string> formats, scales, rotations;
};

inline constexpr const char* kHadamard = "hadamard";

/// The table of the options, bound to `o`.
OptionTable option_table(PrecisionOptions& o);

/// Nothing if help or version was requested. Throws InputError.
std::optional<PrecisionOptions> parse_precision_options(std::span<const std::string> args,
                                                        std::ostream& out);

/// The precisions to measure: full precision (f32, neither scaled nor rotated), then every
/// combination of format, valid scale and rotation. `scales` restricts formats with several valid
/// scales. InputError if a format is left without a scale that it needs.
std::vector<Precision> precisions(const std::vector<std::string>& formats,
                                  const std::vector<std::string>& scales,
                                  const std::vector<std::string>& rotations);

/// How the Index Branch projects: with weights of a precision, and a product in f32 or rounded to
/// the same.
struct Projection {
    Precision precision;
    bool rounded_product = false;
};
/// The projections to measure: in f32, then each of the formats that needs no scale, with a product
/// in f32 and with a rounded one.
std::vector<Projection> projections(const std::vector<std::string>& formats);

}  // namespace msa::experiments::precision
