// SPDX-License-Identifier: MIT
#include "experiments/fit/rope.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "core/cu_seqlens.h"
#include "experiments/fit/architecture.h"

namespace msa::experiments::fit {
namespace {

using nlohmann::json;

const std::map<std::string, RopeType> kTypes{
    {"default", RopeType::plain}, {"linear", RopeType::linear},     {"dynamic", RopeType::dynamic},
    {"yarn", RopeType::yarn},     {"longrope", RopeType::longrope}, {"su", RopeType::longrope},
    {"llama3", RopeType::llama3},
};

template <typename T>
void take(const json& from, const char* name, T& to) {
    const auto at = from.find(name);
    if (at != from.end() && (at->is_number() || at->is_boolean())) to = at->get<T>();
}

void take(const json& from, const char* name, std::vector<double>& to) {
    const auto at = from.find(name);
    if (at != from.end() && at->is_array()) to = at->get<std::vector<double>>();
}

/// What one JSON object says itself; its type, if any.
void take_parameters(const json& from, RopeParameters& p, double& share) {
    take(from, "rope_theta", p.theta);
    take(from, "partial_rotary_factor", share);
    take(from, "max_position_embeddings", p.max_positions);
    take(from, "original_max_position_embeddings", p.original_positions);
    take(from, "factor", p.factor);
    take(from, "low_freq_factor", p.low_freq_factor);
    take(from, "high_freq_factor", p.high_freq_factor);
    take(from, "beta_fast", p.beta_fast);
    take(from, "beta_slow", p.beta_slow);
    take(from, "truncate", p.truncate);
    take(from, "attention_factor", p.attention_factor);
    take(from, "mscale", p.mscale);
    take(from, "mscale_all_dim", p.mscale_all_dim);
    take(from, "short_factor", p.short_factor);
    take(from, "long_factor", p.long_factor);
    for (const char* name : {"type", "rope_type"})
        if (const auto at = from.find(name); at != from.end() && at->is_string()) {
            const auto known = kTypes.find(at->get<std::string>());
            require(known != kTypes.end(), "RoPE of type ", at->dump(), " is not known");
            p.type = known->second;
        }
}

/// The capture's own words on a layer's RoPE, and those of its model's configuration.
std::optional<RopeParameters> configured(const io::ActivationsReader& file,
                                         const io::LayerInfo& info) {
    if (!info.rope_scaling.empty()) return parse_rope(info.rope_scaling, info.head_dim);
    return parse_rope(file.info().model_config, info.head_dim);
}

bool same_frequencies(std::span<const double> some, std::span<const double> others) {
    return std::ranges::equal(
        some, others, [](double a, double b) { return std::fabs(a - b) <= kSameFrequency * b; });
}

}  // namespace

std::optional<RopeParameters> parse_rope(const std::string& text, int64_t head_dim) {
    const json config = json::parse(text, nullptr, false);
    if (!config.is_object()) return std::nullopt;
    RopeParameters p;
    double share = 1;
    bool says = config.contains("rope_theta") || config.contains("rope_type") ||
                (config.contains("type") && config.contains("factor"));
    take_parameters(config, p, share);
    for (const char* name : {"rope_scaling", "rope_parameters"})
        if (const auto at = config.find(name); at != config.end() && at->is_object()) {
            take_parameters(*at, p, share);
            says = true;
        }
    if (!says) return std::nullopt;
    p.rotary_dim = static_cast<int64_t>(static_cast<double>(head_dim) * share) / 2 * 2;
    return p;
}

std::vector<double> model_frequencies(const FitOptions& o, const io::ActivationsReader& file,
                                      int64_t layer) {
    const io::LayerInfo& info = file.layer(layer);
    const std::string at = concat(file.name(), ": /layers/", layer);
    if (const std::optional<RopePairs> stored = io::stored_rope(info)) return stored->frequencies;
    const std::optional<double> theta = info.rope_theta ? info.rope_theta : o.rope_theta;
    const std::optional<RopeParameters> config =
        theta && info.rotary_dim ? std::nullopt : configured(file, info);
    std::optional<int64_t> rotary = info.rotary_dim ? info.rotary_dim : o.rotary_dim;
    if (!rotary && config) rotary = config->rotary_dim;
    require(rotary.has_value(), at, " does not say rotary_dim; give --index-rotary",
            theta ? "" : " and --rope-theta",
            " (--index-rotary 0 for a model without RoPE, as GPT-2)");
    if (*rotary == 0) return {};
    if (theta) return plain_frequencies(*rotary, *theta);
    require(config.has_value(), at, " does not say rope_theta; give --rope-theta");
    RopeParameters p = *config;
    p.rotary_dim = *rotary;
    return rope_frequencies(p, longest_sequence(file.info().cu_seqlens)).inverse;
}

bool chooses_pairs(const FitOptions& o, const IndexForm& form, std::span<const double> model) {
    const auto rotary = 2 * std::ssize(model);
    return o.rope_pairs == WhichPairs::energy && form.rotary_dim > 0 && form.rotary_dim < rotary &&
           (!o.rope_theta || same_frequencies(plain_frequencies(rotary, *o.rope_theta), model));
}

IndexForm index_form(const FitOptions& o, const io::ActivationsReader& file, int64_t layer) {
    const io::LayerInfo& info = file.layer(layer);
    const std::vector<double> model = model_frequencies(o, file, layer);
    IndexForm form;
    form.architecture = o.architecture;
    form.groups = o.index_heads.value_or(info.kv_heads);
    form.index_dim = o.index_dim;
    form.model_dim = info.model_dim;
    if (const auto set_form = fitted(o.architecture).set_form) set_form(form, info, model);
    form.rms_norm = o.rms_norm;
    form.rotary_dim = o.rotary_dim.value_or(std::min(2 * std::ssize(model), o.index_dim));
    const std::optional<double> theta = o.rope_theta ? o.rope_theta : info.rope_theta;
    form.rope_theta = theta.value_or(form.rope_theta);
    const auto pairs = static_cast<size_t>(form.rotary_dim / 2);
    if (!theta && pairs > 0 && !chooses_pairs(o, form, model)) {
        require(model.size() >= pairs && model.size() % pairs == 0, "--index-rotary is ",
                form.rotary_dim, ", must divide the model's rotary_dim = ", 2 * model.size(),
                ", whose frequencies are scaled, unless --rope-pairs is energy");
        for (size_t c = 0; c < pairs; ++c)
            form.rope_frequencies.push_back(model[c * (model.size() / pairs)]);
    }
    form.validate();
    return form;
}

}  // namespace msa::experiments::fit
