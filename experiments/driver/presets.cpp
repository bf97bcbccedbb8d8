// SPDX-License-Identifier: MIT
#include "experiments/driver/presets.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/io/config_kinds.h"
#include "core/meant.h"
#include "experiments/driver/options.h"
#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

using nlohmann::json;

constexpr int64_t kBlockSize = 128, kTopK = 16;  // the paper's
constexpr int64_t kLargestSize = int64_t{1} << 31;
const std::vector<std::string> kSparseSizes{"block_size", "top_k", "index_dim"};

/// Of the data files of a kind, hardware or models: in the environment variable MSA_DATA_DIR, else
/// in the installed folder relative to the running program. It need not exist.
std::filesystem::path folder(const std::string& kind) {
    const char* asked = std::getenv("MSA_DATA_DIR");
    if (asked != nullptr && *asked != '\0') return std::filesystem::path(asked) / kind;
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    return (program.parent_path() / MSA_DATA_FROM_BIN).lexically_normal() / kind;
}

std::vector<std::string> list_names(const std::string& kind) {
    std::vector<std::string> names;
    if (!std::filesystem::is_directory(folder(kind))) return names;
    for (const auto& entry : std::filesystem::directory_iterator(folder(kind)))
        if (entry.path().extension() == ".json") names.push_back(entry.path().stem());
    std::sort(names.begin(), names.end());
    return names;
}

/// A JSON object with the name that its errors begin with.
class Object {
public:
    Object(std::string name, json value) : name_(std::move(name)), value_(std::move(value)) {
        require(value_.is_object(), name_, ": is no JSON object");
    }

    const json& value() const { return value_; }
    const std::string& name() const { return name_; }
    bool has(const std::string& key) const {
        return value_.contains(key) && !value_[key].is_null();
    }
    Object object(const std::string& key) const {
        require(has(key), name_, ": has no ", key);
        return {name_ + ": " + key, value_[key]};
    }
    double positive(const std::string& key) const {
        require(has(key), name_, ": has no ", key);
        const double number = value_[key].is_number() ? value_[key].get<double>() : NAN;
        require(number > 0, key_is_value(key), "must be a positive number");
        return number;
    }
    int64_t size(const std::string& key) const {
        const double number = positive(key);
        require(value_[key].is_number_integer() && number <= kLargestSize, key_is_value(key),
                "must be an integer of at most ", kLargestSize);
        return value_[key].get<int64_t>();
    }
    std::optional<int64_t> size_if_there(const std::string& key) const {
        return has(key) ? std::optional(size(key)) : std::nullopt;
    }
    std::string string_or(const std::string& key, const std::string& otherwise) const {
        if (!has(key)) return otherwise;
        require(value_[key].is_string(), key_is_value(key), "must be a string");
        return value_[key].get<std::string>();
    }
    bool flag_or(const std::string& key, bool otherwise) const {
        if (!has(key)) return otherwise;
        require(value_[key].is_boolean(), key_is_value(key), "must be true or false");
        return value_[key].get<bool>();
    }
    /// "file: key is value, "
    std::string key_is_value(const std::string& key) const {
        return concat(name_, ": ", key, " is ",
                      value_[key].dump(-1, ' ', true, json::error_handler_t::replace), ", ");
    }

private:
    std::string name_;
    json value_;
};

/// Of data/<kind>/<name>.json, or of the file at a path.
Object read_file(const std::string& kind, const std::string& name_or_path) {
    const std::vector<std::string> known = list_names(kind);
    const bool is_name = std::find(known.begin(), known.end(), name_or_path) != known.end();
    const std::filesystem::path path =
        is_name ? folder(kind) / (name_or_path + ".json") : std::filesystem::path(name_or_path);
    require(is_name || std::filesystem::is_regular_file(path), "'", name_or_path, "'",
            did_you_mean(name_or_path, known), " is no file and none of the known ", kind, ": ",
            join(known), " (", folder(kind).string(), ")");
    std::ifstream stream(path);
    const json content = json::parse(stream, nullptr, false);
    const std::string name =
        is_name ? "data/" + kind + "/" + name_or_path + ".json" : path.string();
    require(!content.is_discarded(), name, ": is no valid JSON");
    return {name, content};
}

Element element_of(const Object& rates, const std::string& name) {
    for (Element element : {Element::f32, Element::f16, Element::bf16, Element::e4m3})
        if (name == to_string(element)) return element;
    throw InputError(concat(rates.name(), ": has an unknown element '", name, "'"));
}

/// The first of the keys that is there, in the first of the objects that has one.
std::optional<int64_t> sparse_size(const std::vector<Object>& objects,
                                   const std::vector<std::string>& keys) {
    for (const Object& object : objects)
        for (const std::string& key : keys)
            if (object.has(key)) return object.size(key);
    return std::nullopt;
}

const std::vector<std::string> kBlockSizeKeys{"sparse_block_size", "index_block_size"},
    kTopKKeys{"sparse_topk_blocks", "index_topk_blocks"},
    kIndexDimKeys{"sparse_index_dim", "index_head_dim"},
    kIndexHeadsKeys{"sparse_num_index_heads", "index_n_heads"};

/// Where a config says how blocks are selected, what counts first.
std::vector<Object> sparse_objects(const Object& file, const Object& config) {
    const std::string nested = "sparse_attention_config";
    std::vector<Object> objects;
    for (const Object* from : {&config, &file})
        if (from->has(nested)) objects.push_back(from->object(nested));
    for (const Object& object : objects)
        require(sparse_size({object}, kBlockSizeKeys) || sparse_size({object}, kTopKKeys) ||
                    sparse_size({object}, kIndexDimKeys),
                object.name(), ": has no ", join(kBlockSizeKeys), ", ", join(kTopKKeys), ", ",
                join(kIndexDimKeys), ": this kind of sparse attention is not known");
    objects.push_back(config);
    return objects;
}

void refuse_other_attention(const Object& config) {
    for (const char* key : {"kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim"})
        require(!config.has(key), config.has(key) ? config.key_is_value(key) : "",
                "but latent attention (MLA) is no GQA: its cost is not known");
    require(!config.has("index_topk"),
            config.has("index_topk") ? config.key_is_value("index_topk") : "",
            "but MSA selects blocks, not tokens");
}

/// The costs of one layer would be told as those of layers with other heads.
void refuse_own_heads(const Object& config) {
    const std::string why =
        "layers that differ in their heads, and msa-cost knows layers of one size; write a file of "
        "the sizes of those that you mean";
    for (const char* key :
         {"block_configs", "num_key_value_heads_per_layer", "num_attention_groups"})
        require(!config.has(key), config.name(), ": ", key, " is of ", why);
    for (const auto& [key, all] : {std::pair{"global_head_dim", "head_dim"},
                                   {"num_global_key_value_heads", "num_key_value_heads"}})
        require(!config.has(key) || config.size(key) == config.size_if_there(all),
                config.has(key) ? config.key_is_value(key) : "", "and not ", all, ": it is of ",
                why);
    for (const char* size : {"num_key_value_heads", "num_attention_heads", "head_dim"}) {
        const std::string windowed = concat("swa_", size);
        require(!config.has(windowed) || config.size(windowed) == config.size_if_there(size),
                config.has(windowed) ? config.key_is_value(windowed) : "", "and not ", size,
                ": it is of ", why);
        if (!config.has("per_layer_config")) continue;
        for (const auto& [layer, own] : config.value()["per_layer_config"].items())
            require(!own.is_object() || !own.contains(size) ||
                        own[size] == config.size_if_there(size).value_or(0),
                    config.name(), ": per_layer_config has another ", size, " for layer ", layer,
                    ": it is of ", why);
    }
}

/// As transformers reads Falcon: one head for all queries unless told otherwise.
int64_t read_kv_heads(const Object& config, int64_t query_heads) {
    if (config.has("num_key_value_heads")) return config.size("num_key_value_heads");
    const bool falcon = config.string_or("model_type", "") == "falcon";
    const bool one_head =
        config.flag_or("multi_query", falcon) && !config.flag_or("new_decoder_architecture", false);
    return one_head ? 1 : config.size_if_there("num_kv_heads").value_or(query_heads);
}

int64_t read_head_dim(const Object& config, int64_t query_heads) {
    if (config.has("head_dim")) return config.size("head_dim");
    require(config.size("hidden_size") % query_heads == 0, config.key_is_value("hidden_size"),
            "must be a multiple of num_attention_heads = ", query_heads,
            " where head_dim is absent");
    return config.size("hidden_size") / query_heads;
}

/// Counts the layers that attend, and those that do not by their kind; returns the kinds.
std::vector<std::string> read_layers(const Object& config, Model& model) {
    const bool listed = config.has("layer_types");
    require(!listed || config.value()["layer_types"].is_array(),
            listed ? config.key_is_value("layer_types") : "", "must be a list of names");
    std::vector<std::string> kinds = io::config_kinds(config.value());
    model.layers = kinds.empty() || config.has("num_hidden_layers")
                       ? config.size("num_hidden_layers")
                       : std::ssize(kinds);
    if (std::cmp_less(model.layers, kinds.size())) kinds.resize(static_cast<size_t>(model.layers));
    for (const auto& [kind, layers] : io::layers_without_attention(kinds)) {
        model.without_attention[kind] = std::ssize(layers);
        model.layers -= std::ssize(layers);
    }
    require(model.layers > 0, config.name(), ": no layer has attention");
    return kinds;
}

/// Layers with a window, as transformers decides: what their kinds say, else a pattern in which
/// every n-th layer has none, else those behind max_window_layers, else all.
int64_t count_windowed(const Object& config, const std::vector<std::string>& kinds,
                       int64_t layers) {
    if (!kinds.empty()) return std::ranges::count(kinds, "sliding_attention");
    const bool alternates = config.string_or("model_type", "") == "gemma2";
    const std::optional<int64_t> pattern =
        alternates ? 2 : config.size_if_there("sliding_window_pattern");
    if (pattern) return layers - layers / *pattern;
    if (config.has("use_sliding_window") && config.has("max_window_layers"))
        return std::max<int64_t>(0, layers - config.size("max_window_layers"));
    return layers;
}

void read_window(const Object& config, const std::vector<std::string>& kinds, Model& model) {
    const char* key =
        config.has("attention_window_size") ? "attention_window_size" : "sliding_window";
    if (!config.has(key) || !config.flag_or("use_sliding_window", true)) return;
    model.windowed_layers = count_windowed(config, kinds, model.layers);
    if (model.windowed_layers > 0) model.window = config.size(key);
}

void read_links(const Object& file, analysis::Hardware& on) {
    const auto link = [&](const std::string& name) -> std::optional<analysis::Hardware::Link> {
        if (!file.has(name + "_gigabytes_per_second")) return std::nullopt;
        return analysis::Hardware::Link{file.positive(name + "_gigabytes_per_second") * kGiga,
                                        file.positive(name + "_microseconds") * kMicro};
    };
    on.link = link("link");
    on.network = link("network");
    if (on.link) on.chips_of_host = file.size("chips_of_host");
    if (file.has("step_microseconds"))
        on.step_seconds = file.positive("step_microseconds") * kMicro;
}

std::vector<std::string> read_assumed(const Object& file) {
    std::vector<std::string> names;
    if (!file.has("assumed")) return names;
    const json& list = file.value()["assumed"];
    const auto known = [](const json& name) {
        return name.is_string() && std::find(kSparseSizes.begin(), kSparseSizes.end(),
                                             name.get<std::string>()) != kSparseSizes.end();
    };
    require(list.is_array() && std::all_of(list.begin(), list.end(), known),
            file.key_is_value("assumed"), "must be a list of names out of: ", join(kSparseSizes));
    for (const json& name : list) names.push_back(name.get<std::string>());
    return names;
}

}  // namespace

analysis::Hardware read_hardware(const std::string& name_or_path, Ceilings ceilings) {
    const Object file = read_file("hardware", name_or_path);
    const Object rates = ceilings == Ceilings::measured ? file.object("measured") : file;
    analysis::Hardware on;
    on.name = file.string_or("name", name_or_path);
    const Object flops = rates.object("teraflops_per_second");
    for (const auto& entry : flops.value().items())
        on.flops_per_second[element_of(flops, entry.key())] = flops.positive(entry.key()) * kTera;
    on.bytes_per_second = rates.positive("terabytes_per_second") * kTera;
    if (file.has("cache_mebibytes")) on.cache_bytes = file.positive("cache_mebibytes") * kMebi;
    if (rates.has("cache_terabytes_per_second"))
        on.cache_bytes_per_second = rates.positive("cache_terabytes_per_second") * kTera;
    read_links(file, on);
    return on;
}

bool is_measured(const std::string& name_or_path) {
    return read_file("hardware", name_or_path).has("measured");
}

std::vector<std::string> list_hardware() { return list_names("hardware"); }

std::string chip_of(const std::string& device) {
    const auto words_of = [](const std::string& name) {
        std::string words = " ";
        for (const char letter : name) {
            const auto byte = static_cast<unsigned char>(letter);
            words += std::isalnum(byte) != 0 ? static_cast<char>(std::tolower(byte)) : ' ';
        }
        return words + ' ';
    };
    for (const std::string& chip : list_hardware())
        if (words_of(device).find(words_of(chip)) != std::string::npos) return chip;
    return "";
}

Model read_model(const std::string& name_or_path) {
    const Object file = read_file("models", name_or_path);
    const Object config = file.has("text_config") ? file.object("text_config") : file;
    refuse_other_attention(config);
    refuse_own_heads(config);
    Model model;
    model.name = file.string_or("name", name_or_path);
    const std::vector<std::string> kinds = read_layers(config, model);
    model.query_heads = config.size("num_attention_heads");
    model.kv_heads = read_kv_heads(config, model.query_heads);
    require(model.query_heads % model.kv_heads == 0, config.name(), ": num_attention_heads is ",
            model.query_heads, ", must be a multiple of the ", model.kv_heads, " key-value heads");
    model.head_dim = read_head_dim(config, model.query_heads);
    require(config.size_if_there("v_head_dim").value_or(model.head_dim) == model.head_dim,
            config.name(), ": v_head_dim is ", config.size_if_there("v_head_dim").value_or(0),
            ", must be head_dim = ", model.head_dim, ": keys and values of one width");
    read_window(config, kinds, model);
    const std::vector<Object> sparse = sparse_objects(file, config);
    model.block_size = sparse_size(sparse, kBlockSizeKeys);
    model.top_k = sparse_size(sparse, kTopKKeys);
    model.index_dim = sparse_size(sparse, kIndexDimKeys);
    const std::optional<int64_t> index_heads = sparse_size(sparse, kIndexHeadsKeys);
    require(index_heads.value_or(model.kv_heads) == model.kv_heads, config.name(), ": has ",
            index_heads.value_or(0), " index heads, must be one for each of the ", model.kv_heads,
            " key-value heads");
    model.assumed = read_assumed(file);
    return model;
}

int64_t Model::layers_without_attention() const {
    int64_t all = 0;
    for (const auto& [kind, count] : without_attention) all += count;
    return all;
}

std::vector<std::string> list_models() { return list_names("models"); }

analysis::LayerSizes layer_sizes(const Model& model) {
    analysis::LayerSizes sizes;
    sizes.query_heads = model.query_heads;
    sizes.kv_heads = model.kv_heads;
    sizes.head_dim = model.head_dim;
    sizes.index_dim = model.index_dim.value_or(kDefaultIndexDim);
    sizes.block_size = model.block_size.value_or(kBlockSize);
    sizes.top_k = model.top_k.value_or(kTopK);
    if (model.windowed_layers == model.layers) sizes.window = model.window;
    return sizes;
}

std::string sizes_text(const analysis::LayerSizes& s) {
    return concat("Hq ", s.query_heads, ", Hkv ", s.kv_heads, ", dh ", s.head_dim, ", didx ",
                  s.index_dim, ", Bk ", s.block_size, ", k ", s.top_k);
}

std::vector<std::string> assumed_sizes(const Model& model) {
    const bool given[] = {model.block_size.has_value(), model.top_k.has_value(),
                          model.index_dim.has_value()};
    std::vector<std::string> names;
    for (size_t i = 0; i < kSparseSizes.size(); ++i)
        if (!given[i] || std::find(model.assumed.begin(), model.assumed.end(), kSparseSizes[i]) !=
                             model.assumed.end())
            names.push_back(kSparseSizes[i]);
    return names;
}

}  // namespace msa::experiments
