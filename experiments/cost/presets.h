// SPDX-License-Identifier: MIT
// The JSON files of data/hardware and data/models, or such files of the user's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/hardware.h"
#include "analysis/stage_cost.h"

namespace msa::experiments::cost {

/// Published peaks of a chip, or what was measured on one.
enum class Ceilings : uint8_t { peak, measured };

/// A known name ("h100") or the path of a JSON file. Throws InputError naming file and entry where
/// one that every file has is missing or none of its kind, or lists the known names.
analysis::Hardware read_hardware(const std::string& name_or_path, Ceilings);
std::vector<std::string> list_hardware();

/// Sizes of a model's attention layers; what a config.json may lack is optional.
struct Model {
    std::string name;
    int64_t layers = 0, query_heads = 0, kv_heads = 0, head_dim = 0;
    std::optional<int64_t> index_dim, block_size, top_k;
};

/// A known name ("paper") or the path of a Hugging Face config.json, likewise. Of a multimodal one
/// its text_config; of a sparse one its sparse_attention_config.
Model read_model(const std::string& name_or_path);
std::vector<std::string> list_models();

/// Sizes of one of its layers, all but the tokens; what the model lacks is the paper's.
analysis::LayerSizes layer_sizes(const Model&);

}  // namespace msa::experiments::cost
