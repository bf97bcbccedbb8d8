// SPDX-License-Identifier: MIT
// The options of msa-cache, checked as far as possible without the file.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "experiments/driver/run_options.h"

namespace msa::experiments::cache {

struct CacheOptions : RunOptions {
    std::filesystem::path results;       // of msa-analyze
    std::vector<std::string> selectors;  // empty: all
    std::vector<int64_t> sizes;      // of the cache, in blocks per group; empty: steps of sqrt 2
    std::optional<Element> element;  // of cached keys and values; empty: as in the results
    std::optional<int64_t> model_layers;
    bool prefetch = false;          // by the previous layer's blocks
    double link = 64;               // GB/s
    double time_per_token = 10000;  // us
};

/// The value of --prefetch for prefetching by the previous layer.
inline constexpr char kByLayer[] = "previous-layer";

/// The table of the options, bound to `o`.
OptionTable option_table(CacheOptions& o);

/// Nothing if help or version was requested. Sizes are ascending without repeats. Throws
/// InputError.
std::optional<CacheOptions> parse_cache_options(std::span<const std::string> args,
                                                std::ostream& out);

}  // namespace msa::experiments::cache
