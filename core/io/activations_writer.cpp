// SPDX-License-Identifier: MIT
#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/io/activations.h"
#include "core/io/h5.h"
#include "core/io/layout.h"
#include "core/io/partial_file.h"
#include "core/number/half.h"

namespace msa::io {
namespace {

template <typename Half>
std::vector<uint16_t> rounded(View<const float, 3> values, const h5::Place& place) {
    std::vector<uint16_t> raw(static_cast<size_t>(values.size()));
    Eigen::Map<Eigen::Array<Half, Eigen::Dynamic, 1>> half(reinterpret_cast<Half*>(raw.data()),
                                                           values.size());
    half = Eigen::Map<const Eigen::ArrayXf>(values.data(), values.size()).cast<Half>();
    require(half.template cast<float>().isFinite().all(), place.text(),
            ": a value to write is above the largest ", to_string(ElementOf<Half>::value));
    return raw;
}

}  // namespace

struct ActivationsWriter::Impl {
    Impl(std::filesystem::path path, const ActivationsInfo& about, bool overwrite)
        : output(std::move(path), overwrite),
          partial(output.partial()),
          info(about),
          file(h5::create_file(partial)) {}

    PartialFile output;
    std::filesystem::path partial;
    ActivationsInfo info;
    h5::Handle file;

    void create_layer(const LayerInfo& layer) {
        const h5::Place at{partial, concat("/layers/", layer.layer)};
        const h5::Handle group = h5::make_group(file, at);
        h5::set_attribute(group, "q_state", std::string(to_string(layer.q_state)));
        h5::set_attribute(group, "k_state", std::string(to_string(layer.k_state)));
        h5::set_attribute(group, "softmax_scale", layer.softmax_scale);
        if (layer.rotary_dim) h5::set_attribute(group, "rotary_dim", *layer.rotary_dim);
        if (layer.rope_theta) h5::set_attribute(group, "rope_theta", *layer.rope_theta);
        if (!layer.rope_scaling.empty())
            h5::set_attribute(group, "rope_scaling", layer.rope_scaling);
        if (!layer.rope_inv_freq.empty())
            h5::set_attribute(group, "rope_inv_freq", layer.rope_inv_freq);
        if (layer.rope_attention_factor)
            h5::set_attribute(group, "rope_attention_factor", *layer.rope_attention_factor);
        if (layer.rope_interleaved)
            h5::set_attribute(group, "rope_layout", std::string("interleaved"));
        if (layer.own_sparse) h5::set_attribute(group, "own_attention", std::string("sparse"));
        if (layer.learned.gate_dim > 0)
            h5::set_attribute(group, "gate_block_size", layer.learned.gate_block_size);
        if (layer.learned.qsa_heads > 0)
            h5::set_attribute(group, "qsa_compress", layer.learned.qsa_compress);
        if (layer.own_block_size) h5::set_attribute(group, "own_block_size", *layer.own_block_size);
        if (layer.own_top_k) h5::set_attribute(group, "own_top_k", *layer.own_top_k);
        if (layer.learned.source) h5::set_attribute(group, "index_source", *layer.learned.source);
        for (const auto& [name, values] : layer.own_attention)
            h5::set_attribute(group, name, values);
        for (Field field : kFields) {
            if (!layer.has(field)) continue;
            if (layer.learned.source && is_of_index(field)) {
                h5::link(file, field_place(partial, *layer.learned.source, field),
                         field_place(partial, layer.layer, field));
                continue;
            }
            const h5::Slab whole = field_slab(
                field, 0, 0, {info.rows(layer, field), layer.heads(field), layer.channels(field)});
            std::vector<hsize_t> chunk = whole.count;
            chunk[0] = std::min<hsize_t>(chunk[0], kChunkTokens);
            if (has_head_axis(field)) chunk[1] = 1;
            const h5::Handle dataset =
                h5::create_dataset(file, field_place(partial, layer.layer, field),
                                   h5::memory_type(layer.element), whole.count, {chunk, false});
            if (layer.element == Element::bf16)
                h5::set_attribute(dataset, "logical_dtype", std::string("bfloat16"));
        }
    }
};

ActivationsWriter::ActivationsWriter(std::filesystem::path path, const ActivationsInfo& info,
                                     bool overwrite)
    : impl_(std::make_unique<Impl>(std::move(path), info, overwrite)) {
    const h5::Lock lock;
    const h5::Handle root = h5::open_object(impl_->file, {impl_->partial, "/"});
    h5::set_attribute(root, "format", std::string(kActivationsFormat));
    h5::set_attribute(root, "format_version", kActivationsVersion);
    h5::set_attribute(root, "model_id", info.model_id);
    h5::set_attribute(root, "model_config", info.model_config);
    h5::set_attribute(root, "producer", info.producer);
    const hsize_t entries = info.cu_seqlens.size();
    const h5::Place at{impl_->partial, "/cu_seqlens"};
    const h5::Handle dataset = h5::create_dataset(impl_->file, at, H5T_STD_I64LE, {entries}, {});
    h5::write(dataset, H5T_NATIVE_INT64, {{0}, {entries}}, info.cu_seqlens.data(), at);
    for (const LayerInfo& layer : info.layers) impl_->create_layer(layer);
}

ActivationsWriter::~ActivationsWriter() = default;

void ActivationsWriter::write(int64_t number, Field field, int64_t first_token, int64_t first_head,
                              View<const float, 3> values) {
    const auto layer = std::find_if(impl_->info.layers.begin(), impl_->info.layers.end(),
                                    [&](const LayerInfo& l) { return l.layer == number; });
    MSA_CHECK(layer != impl_->info.layers.end() && layer->has(field));
    const h5::Place place = field_place(impl_->partial, number, field);
    require(Eigen::Map<const Eigen::ArrayXf>(values.data(), values.size()).isFinite().all(),
            place.text(), ": a value to write is NaN or Inf");
    const h5::Lock lock;
    const h5::Handle dataset = h5::open_object(impl_->file, place);
    const h5::Slab slab = field_slab(field, first_token, first_head, values.shape());
    const h5::Handle memory = h5::memory_type(layer->element);
    if (layer->element == Element::f32) {
        h5::write(dataset, memory, slab, values.data(), place);
    } else {
        const std::vector<uint16_t> raw = layer->element == Element::f16
                                              ? rounded<f16>(values, place)
                                              : rounded<bf16>(values, place);
        h5::write(dataset, memory, slab, raw.data(), place);
    }
}

void ActivationsWriter::write_tokens(std::span<const int32_t> tokens) {
    const h5::Lock lock;
    const h5::Place at{impl_->partial, "/tokens"};
    const h5::Handle dataset =
        h5::create_dataset(impl_->file, at, H5T_STD_I32LE, {tokens.size()},
                           {{std::min<hsize_t>(tokens.size(), hsize_t{1} << 16)}});
    h5::write(dataset, H5T_NATIVE_INT32, {{0}, {tokens.size()}}, tokens.data(), at);
}

void ActivationsWriter::finish() {
    h5::close_durably(std::move(impl_->file), impl_->partial);
    impl_->output.finish();
}

}  // namespace msa::io
