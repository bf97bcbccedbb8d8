// SPDX-License-Identifier: MIT
// The findings of msa-cache over all layers: curves by cache size, and the smallest cache whose
// misses the link can carry.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "experiments/cache/layer.h"
#include "experiments/report/report.h"

namespace msa::experiments::cache {

/// A selector on a layer.
struct LayerFindings {
    int64_t layer = 0;
    std::string selector;
    int64_t steps = 0, groups = 0, block_bytes = 0, smallest_cache = 0;
    std::optional<int64_t> previous{};  // the layer whose ids are guesses
    std::string note{};                 // on it
    Seen seen{};                        // all groups together
};

/// Why a cache is among the findings.
enum class Role : uint8_t { recommended, tried, whole_context };

/// An LRU cache of `blocks` blocks for each layer and group. Numbers per token cover all layers of
/// the model and all groups.
struct Point {
    Role role = Role::tried;
    std::string selector{};
    int64_t blocks = 0;
    double share_of_context = 0;
    double cache_bytes = 0;
    double hit_rate = 0;                           // uses that do not miss, of all uses
    std::optional<double> lfu{}, belady{};         // their hit rates, if the size was tried
    double misses = 0, bytes = 0;                  // per token; bytes over the link
    double link_seconds = 0;                       // per token
    std::optional<double> late{}, late_in_vain{};  // remaining misses, and blocks fetched in vain,
                                                   // per token, with prefetch by the previous layer
};

struct SelectorFindings {
    std::string selector;
    std::vector<Point> points{};         // for the tried sizes
    std::optional<Point> recommended{};  // the smallest that meets the time
    Point whole{};                       // for the whole context: only cold misses
    std::optional<int64_t> lfu{},
        belady{};              // smallest size that meets the time under these policies
    double written_bytes = 0;  // per token, from the GPU
    int64_t layers = 0;
    int64_t layers_guessed = 0;  // that have a previous one
};

struct Findings {
    std::string element;
    int64_t block_size = 0, context_blocks = 0, steps = 0, sequences = 0, model_layers = 0;
    bool prefetch = false;                   // by the previous layer
    double link = 0, seconds_per_token = 0;  // bytes a second
    std::vector<LayerFindings> layers{};     // by layer, then by selector
    std::vector<SelectorFindings> selectors{};
    double bytes_per_token() const { return link * seconds_per_token; }  // at most
    bool reached() const;                                                // by any selector
};

/// From results.h5 of msa-cache.
Findings make_findings(const io::ResultsReader&);

/// The tables selectors, caches, layers, reuses and measured.
report::Report make_report(const io::ResultsReader&);

}  // namespace msa::experiments::cache
