// SPDX-License-Identifier: MIT
// The options of msa-cost, checked as far as possible without its files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "experiments/driver/option_table.h"
#include "experiments/driver/presets.h"

namespace msa::experiments::cost {

struct CostOptions {
    std::string preset = "paper";
    std::vector<int64_t> contexts{1 << 15, 1 << 17, 1 << 19, 1 << 20};
    std::optional<int64_t> block_size, top_k, index_dim;  // else the model's, else layer_sizes()'
    std::optional<double> union_blocks;                   // see analysis::LayerSizes
    std::optional<Element> element, index_element;        // set by parse_cost_options
    std::vector<int64_t> gpus;  // GPUs that share a layer; empty: one GPU, by stages
    std::string hardware = "h100";
    Ceilings ceilings = Ceilings::peak;
    std::filesystem::path results;       // measured selections; empty: from sizes
    std::vector<int64_t> layers;         // of the results; empty: all
    std::vector<std::string> selectors;  // of the results; empty: all
    bool stages = false;                 // on the page, too
    bool json = false;
};

OptionTable option_table(CostOptions&);

/// Nothing if help or version was requested. Throws InputError.
std::optional<CostOptions> parse_cost_options(std::span<const std::string> args, std::ostream& out);

}  // namespace msa::experiments::cost
