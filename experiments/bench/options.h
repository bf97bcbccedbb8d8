// SPDX-License-Identifier: MIT
// The options of msa-bench, checked as far as possible without a backend.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "analysis/stage_cost.h"
#include "core/backend.h"
#include "experiments/bench/captured.h"
#include "experiments/driver/option_table.h"

namespace msa::experiments::bench {

/// What the command line says where that is not yet what is measured (absent: not given), then what
/// is measured: a record has them.
struct BenchWords {
    std::vector<std::string> stages, cases, selections, supports, orders, index_elements;
    std::filesystem::path input, indexer;
    std::string preset = "paper";
    std::vector<int64_t> layers;
    std::optional<Element> element;
    std::optional<int64_t> query_heads, kv_heads, head_dim, index_dim, block_size, top_k;
};

struct BenchOptions {
    BenchWords words;
    std::string backend;
    std::vector<std::string> stages, cases, selections, supports;  // known, in the order given
    std::vector<LoopOrder> orders;                    // of sparse_attention and its gradient
    std::vector<int64_t> tokens;                      // empty: each case's own
    std::shared_ptr<const Captured> captured;         // absent: synthetic operands
    std::vector<int64_t> batches{1, 8, 32, 64, 128};  // sequences of a decode step
    std::string model;
    analysis::LayerSizes sizes;  // all but the tokens
    std::vector<Element> index_elements;
    std::vector<int64_t> page_sizes;  // of pages that forward stages are timed with, too
    int64_t capacity = 0;             // tokens up to which a graph of a step is right; 0: not timed
    std::vector<int64_t> devices;     // ranks that compute one layer together; empty: one device
    int64_t samples = 9;
    uint64_t seed = 0;
    std::string out;  // record; empty: none
    bool overwrite = false, json = false;

    bool wants(const std::string& stage) const;
    /// Whether the backend is one of the cuda backends.
    bool on_gpu() const;
};

OptionTable option_table(BenchOptions&);

/// Nothing if help or version was requested. Throws InputError.
std::optional<BenchOptions> parse_bench_options(std::span<const std::string> args,
                                                std::ostream& out);

}  // namespace msa::experiments::bench
