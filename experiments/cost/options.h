// SPDX-License-Identifier: MIT
// The options of msa-cost, checked as far as possible without its files.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "experiments/driver/options.h"
#include "experiments/driver/presets.h"

namespace msa::experiments::cost {

/// Version of the JSON.
inline constexpr int kRecordVersion = 3;

struct CostOptions {
    std::string preset = "paper";
    std::vector<int64_t> contexts{1 << 15, 1 << 17, 1 << 19, 1 << 20};
    std::optional<int64_t> block_size, top_k, index_dim;  // else the model's, else the paper's
    std::optional<double> union_blocks;                   // see analysis::LayerSizes
    Element element = Element::bf16, index_element = Element::bf16;
    std::vector<int64_t> gpus;  // GPUs that share a layer; empty: one GPU, by stages
    std::string hardware = "h100";
    Ceilings ceilings = Ceilings::peak;
    std::string results;                 // measured selections; empty: from sizes
    std::vector<int64_t> layers;         // of the results; empty: all
    std::vector<std::string> selectors;  // of the results; empty: all
    bool json = false;
};

/// Nothing if help or version was requested. Throws InputError.
std::optional<CostOptions> parse_cost_options(std::span<const std::string> args, std::ostream& out);

}  // namespace msa::experiments::cost
