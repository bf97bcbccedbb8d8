// SPDX-License-Identifier: MIT
// The JSON files of data/hardware and data/models, or such files of the user's.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "analysis/hardware.h"
#include "analysis/stage_cost.h"

namespace msa::experiments {

/// Published peaks of a chip, or what was measured on one.
enum class Ceilings : uint8_t { peak, measured };

/// A known name ("h100") or the path of a JSON file. Throws InputError naming file, entry, value
/// and rule where one that every file has is missing or of another kind, or lists the known names.
analysis::Hardware read_hardware(const std::string& name_or_path, Ceilings);
/// Has its table rates that were measured?
bool is_measured(const std::string& name_or_path);
std::vector<std::string> list_hardware();
/// The known name that is a word of a device's: "h100" for "NVIDIA H100 80GB HBM3, ..."; empty
/// where there is none.
std::string chip_of(const std::string& device);

/// Sizes of a model's attention layers; what a config.json may lack is optional.
struct Model {
    std::string name;
    int64_t layers = 0, query_heads = 0, kv_heads = 0, head_dim = 0;
    std::optional<int64_t> index_dim, block_size, top_k;
    std::optional<int64_t> window;  // keys that a query of its windowed layers attends to
    int64_t windowed_layers = 0;
    /// Sizes of the file that its source does not give: "block_size", "top_k", "index_dim".
    std::vector<std::string> assumed;
};

/// A known name ("paper") or the path of a Hugging Face config.json, likewise. Of a multimodal
/// model its text_config is read. The sparse sizes are those of sparse_attention_config where it
/// has them, else of the keys index_block_size, index_topk_blocks and index_head_dim, as in
/// transformers' MiniMax-M3. Key-value heads are num_key_value_heads or Falcon's num_kv_heads,
/// multi_query and new_decoder_architecture. Windows are sliding_window, of the layers that
/// use_sliding_window, layer_types, sliding_window_pattern and max_window_layers leave it. Throws
/// InputError for what is no GQA with block selection: latent attention, values of another width
/// than keys, selection of tokens, another number of index heads than key-value heads, layers that
/// differ in their heads (block_configs, global_head_dim).
Model read_model(const std::string& name_or_path);
std::vector<std::string> list_models();

/// Sizes of one of its layers without a window, or of any where all have one; all but the tokens.
/// What the model lacks is the paper's.
analysis::LayerSizes layer_sizes(const Model&);
/// Names of the sizes of layer_sizes() that nobody gave: the file's `assumed` and those it lacks.
std::vector<std::string> assumed_sizes(const Model&);

}  // namespace msa::experiments
