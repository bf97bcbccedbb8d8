// SPDX-License-Identifier: MIT
#include "core/io/layer_attributes.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/error.h"

namespace msa::io {
namespace {

class Attributes {
public:
    Attributes(hid_t group, const h5::Place& place, LayerInfo& layer)
        : group_(group), place_(place), layer_(layer) {}

    void read() {
        layer_.softmax_scale = positive("softmax_scale");
        if (has("rotary_dim")) layer_.rotary_dim = rotary_dim();
        if (has("rope_theta")) layer_.rope_theta = positive("rope_theta");
        if (has("rope_scaling")) layer_.rope_scaling = json_text("rope_scaling");
        if (has("rope_inv_freq")) read_frequencies();
        require(!layer_.rope_theta || layer_.rope_inv_freq.empty(), place_.text(),
                " has the attributes rope_theta and rope_inv_freq, of plain and of scaled RoPE; a "
                "layer has one of them");
        if (has("rope_attention_factor"))
            layer_.rope_attention_factor = positive("rope_attention_factor");
        if (has("rope_layout")) layer_.rope_interleaved = the_only("rope_layout", "interleaved");
        if (has("own_attention")) layer_.own_sparse = the_only("own_attention", "sparse");
        if (has("own_block_size")) layer_.own_block_size = count("own_block_size");
        if (has("own_top_k")) layer_.own_top_k = count("own_top_k");
        if (has("index_source")) layer_.learned.source = index_source();
        for (const char* name : kOwnAttention)
            if (has(name)) layer_.own_attention[name] = own_attention(name);
    }

private:
    bool has(const char* name) const { return h5::has_attribute(group_, name); }
    std::string attribute(const char* name) const {
        return concat(place_.text(), " attribute ", name, " is ");
    }
    double number(const char* name) const { return h5::number_attribute(group_, name, place_); }

    /// A text that has one value.
    bool the_only(const char* name, const char* value) const {
        const std::string found = h5::text_attribute(group_, name, place_);
        require(found == value, attribute(name), "'", found, "', must be '", value, "'");
        return true;
    }

    double positive(const char* name) const {
        const double value = number(name);
        require(std::isfinite(value) && value > 0, attribute(name), value,
                ", must be finite and positive");
        return value;
    }

    int64_t count(const char* name) const {
        constexpr double kMost = 1LL << 53;
        const double value = number(name);
        require(1 <= value && value <= kMost && value == std::floor(value), attribute(name), value,
                ", must be an integer of at least 1");
        return static_cast<int64_t>(value);
    }

    int64_t index_source() const {
        const double source = number("index_source");
        require(source >= 0 && source < static_cast<double>(layer_.layer) &&
                    source == std::floor(source),
                attribute("index_source"), source, ", must be the number of an earlier layer");
        return static_cast<int64_t>(source);
    }

    int64_t rotary_dim() const {
        const double dim = number("rotary_dim");
        require(dim >= 0 && dim <= static_cast<double>(layer_.head_dim) &&
                    dim / 2 == std::floor(dim / 2),
                attribute("rotary_dim"), dim, ", must be even, from 0 to the head dim ",
                layer_.head_dim);
        return static_cast<int64_t>(dim);
    }

    std::string json_text(const char* name) const {
        std::string value = h5::text_attribute(group_, name, place_);
        require(nlohmann::json::accept(value), place_.text(), " attribute ", name, " is not JSON");
        return value;
    }

    std::vector<double> numbers(const char* name, int64_t size, const char* of) const {
        std::vector<double> values = h5::numbers_attribute(group_, name, place_);
        require(std::ssize(values) == size, place_.text(), " attribute ", name, " has ",
                values.size(), " numbers, must have one for each of the ", size, " ", of);
        for (double value : values)
            require(std::isfinite(value), attribute(name), value, " in one place, must be finite");
        return values;
    }

    void read_frequencies() {
        require(layer_.rotary_dim.has_value(), place_.text(),
                " has an attribute rope_inv_freq and no rotary_dim; they come together");
        layer_.rope_inv_freq =
            numbers("rope_inv_freq", *layer_.rotary_dim / 2, "pairs of rotary_dim");
        for (double value : layer_.rope_inv_freq)
            require(value >= 0, attribute("rope_inv_freq"), value,
                    " in one place, must not be negative");
    }

    std::vector<double> own_attention(const std::string& name) const {
        if (name == "sinks") return numbers("sinks", layer_.query_heads, "query heads");
        if (name == "softcap") return {positive("softcap")};
        return {static_cast<double>(count(name.c_str()))};
    }

    hid_t group_;
    const h5::Place& place_;
    LayerInfo& layer_;
};

}  // namespace

void read_attributes(hid_t group, const h5::Place& place, LayerInfo& layer) {
    Attributes(group, place, layer).read();
}

}  // namespace msa::io
