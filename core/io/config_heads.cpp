// SPDX-License-Identifier: MIT
#include "core/io/config_heads.h"

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>

namespace msa::io {
namespace {

using nlohmann::json;

/// The entry of an object or of a list; null where there is none.
json entry(const json& of, const std::string& name) {
    return of.is_object() && of.contains(name) ? of[name] : json();
}
json entry(const json& of, int64_t place) {
    return of.is_array() && place < std::ssize(of) ? of[static_cast<size_t>(place)] : json();
}

/// The number of one layer among all that a configuration says under `name`, what is particular to
/// it first: transformers' per_layer_config, lists with an entry for each layer, and numbers of the
/// layers of a kind (Gemma 4's full attention, sliding windows of Inkling and others).
std::optional<int64_t> of_layer(const json& config, const std::string& name, int64_t layer) {
    const json kind = entry(entry(config, "layer_types"), layer),
               shares_kv = entry(config, "attention_k_eq_v");
    json of_kind;
    if (kind == "full_attention" && name == "num_key_value_heads" && shares_kv != false)
        of_kind = entry(config, "num_global_key_value_heads");
    if (kind == "sliding_attention") of_kind = entry(config, "swa_" + name);
    for (const json& number :
         {entry(entry(entry(config, "per_layer_config"), std::to_string(layer)), name),
          entry(entry(config, name + "_per_layer"), layer), entry(entry(config, name), layer),
          of_kind, entry(config, name)})
        if (number.is_number_integer()) return number.get<int64_t>();
    return std::nullopt;
}

std::optional<int64_t> of_layer(const json& config, std::initializer_list<const char*> names,
                                int64_t layer) {
    for (const char* name : names)
        if (const std::optional<int64_t> number = of_layer(config, name, layer)) return number;
    return std::nullopt;
}

}  // namespace

std::optional<int64_t> config_kv_heads(const json& config, int64_t layer) {
    return of_layer(config, {"num_kv_heads", "num_key_value_heads"}, layer);
}

std::optional<int64_t> config_query_heads(const json& config, int64_t layer) {
    return of_layer(config, {"num_query_heads", "num_attention_heads"}, layer);
}

}  // namespace msa::io
