// SPDX-License-Identifier: MIT
// The JSON files of data/hardware and data/models, or such files of the user's.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "analysis/hardware.h"
#include "analysis/stage_cost.h"

namespace msa::experiments {

/// Published peaks of a chip, or measured rates.
enum class Ceilings : uint8_t { peak, measured };

/// Reads a chip by its known name ("h100") or from the path of a JSON file. Throws InputError
/// naming file, entry, value and rule if a required entry is missing or invalid; for an unknown
/// name, lists the known ones.
analysis::Hardware read_hardware(const std::string& name_or_path, Ceilings);
/// Whether the chip's file has measured rates.
bool is_measured(const std::string& name_or_path);
std::vector<std::string> list_hardware();
/// The known name that is a word of the device's name: "h100" for "NVIDIA H100 80GB HBM3, ...";
/// empty if there is none.
std::string chip_of(const std::string& device);

/// Channels of an index head where neither the model nor the user says: of what msa-fit-indexer
/// makes.
inline constexpr int64_t kDefaultIndexDim = 64;

/// Sizes of a model's attention layers; optional if a config.json may lack them.
struct Model {
    std::string name;
    int64_t layers = 0;  // with attention
    int64_t query_heads = 0, kv_heads = 0, head_dim = 0;
    std::optional<int64_t> index_dim, block_size, top_k;
    std::optional<int64_t> window;  // keys that a query in a windowed layer attends to
    int64_t windowed_layers = 0;
    std::map<std::string, int64_t> without_attention;  // further layers, by kind
    int64_t layers_without_attention() const;
    /// Sizes in the file that its source does not give: "block_size", "top_k", "index_dim".
    std::vector<std::string> assumed;
};

/// The same for a model: a known name ("paper") or the path of a Hugging Face config.json. For a
/// multimodal model its text_config is read. Sparse sizes come from sparse_attention_config, else
/// from the keys index_block_size, index_topk_blocks and index_head_dim, as in transformers'
/// MiniMax-M3. Key-value heads come from num_key_value_heads, or Falcon's num_kv_heads, multi_query
/// and new_decoder_architecture. io::config_kinds says which layers have attention. The window is
/// sliding_window, RecurrentGemma's attention_window_size; use_sliding_window, layer_types,
/// sliding_window_pattern and max_window_layers say which layers have it. Throws InputError for
/// models other than GQA with block selection: latent attention, values of another width than keys,
/// selection of tokens, no attention at all, index heads that differ from key-value heads in
/// number, layers that differ in their heads (block_configs, global_head_dim).
Model read_model(const std::string& name_or_path);
std::vector<std::string> list_models();

/// Sizes of one of its layers without a window (or of any if all have one), except the number of
/// tokens. A missing block size and k are the paper's, a missing index dim is kDefaultIndexDim.
analysis::LayerSizes layer_sizes(const Model&);
/// "Hq 64, Hkv 4, dh 128, didx 128, Bk 128, k 16"
std::string sizes_text(const analysis::LayerSizes&);
/// Names of the sizes in layer_sizes() that are assumed: the file's `assumed` and those it lacks.
std::vector<std::string> assumed_sizes(const Model&);

}  // namespace msa::experiments
