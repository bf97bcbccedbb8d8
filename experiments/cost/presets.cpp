// SPDX-License-Identifier: MIT
#include "experiments/cost/presets.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "experiments/driver/data.h"
#include "experiments/driver/options.h"
#include "experiments/driver/units.h"

namespace msa::experiments::cost {
namespace {

using nlohmann::json;

constexpr int64_t kBlockSize = 128, kTopK = 16, kIndexDim = 128;  // the paper's
std::filesystem::path folder(const std::string& kind) { return data_directory() / kind; }

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
        require(number > 0, name_, ": ", key, " is ", value_[key].dump(), ", must be positive");
        return number;
    }
    int64_t size(const std::string& key) const {
        const double number = positive(key);
        require(value_[key].is_number_integer(), name_, ": ", key, " is ", number,
                ", must be an integer");
        return value_[key].get<int64_t>();
    }
    std::optional<int64_t> size_if_there(const std::string& key) const {
        return has(key) ? std::optional(size(key)) : std::nullopt;
    }

    const std::string& name() const { return name_; }

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
    require(is_name || std::filesystem::is_regular_file(path), "'", name_or_path,
            "' is no file and none of the known ", kind, ": ", join(known), " (",
            folder(kind).string(), ")");
    std::ifstream stream(path);
    const json content = json::parse(stream, nullptr, false);
    const std::string name =
        is_name ? "data/" + kind + "/" + name_or_path + ".json" : path.string();
    require(!content.is_discarded(), name, ": is no valid JSON");
    return {name, content};
}

Element element_of(const std::string& name) {
    for (Element element : {Element::f32, Element::f16, Element::bf16, Element::e4m3})
        if (name == to_string(element)) return element;
    throw InputError("teraflops_per_second has an unknown element '" + name + "'");
}

}  // namespace

analysis::Hardware read_hardware(const std::string& name_or_path, Ceilings ceilings) {
    const Object file = read_file("hardware", name_or_path);
    const Object rates = ceilings == Ceilings::measured ? file.object("measured") : file;
    analysis::Hardware on;
    on.name = file.value().value("name", name_or_path);
    const Object flops = rates.object("teraflops_per_second");
    for (const auto& entry : flops.value().items())
        on.flops_per_second[element_of(entry.key())] = flops.positive(entry.key()) * kTera;
    on.bytes_per_second = rates.positive("terabytes_per_second") * kTera;
    if (file.has("cache_mebibytes")) on.cache_bytes = file.positive("cache_mebibytes") * kMebi;
    if (rates.has("cache_terabytes_per_second"))
        on.cache_bytes_per_second = rates.positive("cache_terabytes_per_second") * kTera;
    return on;
}

std::vector<std::string> list_hardware() { return list_names("hardware"); }

Model read_model(const std::string& name_or_path) {
    const Object file = read_file("models", name_or_path);
    const Object config = file.has("text_config") ? file.object("text_config") : file;
    Model model;
    model.name = file.value().value("name", name_or_path);
    model.layers = config.size("num_hidden_layers");
    model.query_heads = config.size("num_attention_heads");
    model.kv_heads = config.size_if_there("num_key_value_heads").value_or(model.query_heads);
    require(model.query_heads % model.kv_heads == 0, config.name(), ": num_attention_heads is ",
            model.query_heads, ", must be a multiple of num_key_value_heads = ", model.kv_heads);
    model.head_dim = config.has("head_dim") ? config.size("head_dim")
                                            : config.size("hidden_size") / model.query_heads;
    if (config.has("sparse_attention_config")) {
        const Object sparse = config.object("sparse_attention_config");
        model.index_dim = sparse.size_if_there("sparse_index_dim");
        model.block_size = sparse.size_if_there("sparse_block_size");
        model.top_k = sparse.size_if_there("sparse_topk_blocks");
    }
    return model;
}

std::vector<std::string> list_models() { return list_names("models"); }

analysis::LayerSizes layer_sizes(const Model& model) {
    analysis::LayerSizes sizes;
    sizes.query_heads = model.query_heads;
    sizes.kv_heads = model.kv_heads;
    sizes.head_dim = model.head_dim;
    sizes.index_dim = model.index_dim.value_or(kIndexDim);
    sizes.block_size = model.block_size.value_or(kBlockSize);
    sizes.top_k = model.top_k.value_or(kTopK);
    return sizes;
}

}  // namespace msa::experiments::cost
