// SPDX-License-Identifier: MIT
// The findings of msa-cache over all layers: curves by cache size, and the smallest cache whose
// misses the link can carry.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "core/io/results.h"
#include "experiments/cache/layer.h"

namespace msa::experiments::cache {

/// A selector on a layer.
struct LayerReport {
    int64_t layer = 0;
    std::string selector;
    int64_t steps = 0, groups = 0, block_bytes = 0, smallest_cache = 0;
    std::optional<int64_t> previous{};  // the layer whose ids are guesses
    std::string note{};                 // on it
    Seen seen{};                        // all groups together
};

/// An LRU cache of `blocks` blocks for each layer and group. Numbers per token cover all layers of
/// the model and all groups.
struct Point {
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

struct SelectorReport {
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

struct Report {
    std::string file, element;
    int64_t block_size = 0, context_blocks = 0, steps = 0, sequences = 0, model_layers = 0;
    bool prefetch = false;                   // by the previous layer
    double link = 0, seconds_per_token = 0;  // bytes a second
    std::vector<LayerReport> layers{};       // by layer, then by selector
    std::vector<SelectorReport> selectors{};
    double bytes_per_token() const { return link * seconds_per_token; }  // at most
    bool reached() const;                                                // by any selector
};

/// From results.h5 of msa-cache.
Report make_report(const io::ResultsReader&);

/// Text of each number of the summary, JSON object.
std::string cache_definitions();

/// summary.json: {"format", "program", "options", "definitions", "file", sizes, "link",
/// "selectors": [{"recommended", "points", ...}], "layers": [...]}.
std::string cache_summary(const Report&, const io::RunRecord&);

/// rows.csv: the points of all selectors.
std::string cache_rows_csv(const Report&);

/// The page: recommended sizes, hit rates by size, reuse and prefetch by layer.
void print_report(const Report&, std::ostream& out);

/// Why no cache meets the time, and the time that the nearest one needs; empty if one does.
std::string nearest_text(const Report&);

}  // namespace msa::experiments::cache
