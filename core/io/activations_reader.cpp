// SPDX-License-Identifier: MIT
// One or several files of activations as one packed data set.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/io/activations.h"
#include "core/io/activations_file.h"
#include "core/io/layout.h"

namespace msa::io {
namespace {

/// What files of one data set agree in, by its place: "/layers/3/q" -> "f16, 16 heads of 64".
using Facts = std::map<std::string, std::string>;

/// A value as JSON; bytes of a file that are no UTF-8 as U+FFFD.
std::string json_text(const nlohmann::json& value) {
    return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

void add_attributes(const LayerInfo& layer, const std::string& group, Facts& facts) {
    const auto add = [&](const std::string& name, const auto& value) {
        facts[group + " attribute " + name] = json_text(value);
    };
    const auto add_given = [&](const char* name, const auto& value) {
        if (value) add(name, *value);
    };
    const auto add_each = [&](const std::string& name, const std::vector<double>& values) {
        for (size_t n = 0; n < values.size(); ++n) add(concat(name, "[", n, "]"), values[n]);
    };
    add("q_state", to_string(layer.q_state));
    add("k_state", to_string(layer.k_state));
    add("softmax_scale", layer.softmax_scale);
    add_given("rotary_dim", layer.rotary_dim);
    add_given("rope_theta", layer.rope_theta);
    if (!layer.rope_scaling.empty()) add("rope_scaling", layer.rope_scaling);
    add_each("rope_inv_freq", layer.rope_inv_freq);
    add_given("rope_attention_factor", layer.rope_attention_factor);
    if (layer.rope_interleaved) add("rope_layout", "interleaved");
    if (layer.own_sparse) add("own_attention", "sparse");
    if (layer.learned.gate_dim > 0) add("gate_block_size", layer.learned.gate_block_size);
    if (layer.learned.qsa_heads > 0) add("qsa_compress", layer.learned.qsa_compress);
    add_given("own_block_size", layer.own_block_size);
    add_given("own_top_k", layer.own_top_k);
    add_given("index_source", layer.learned.source);
    for (const auto& [name, values] : layer.own_attention) add_each(name, values);
}

Facts facts_of(const ActivationsInfo& info) {
    Facts facts{{"/ attribute model_id", json_text(info.model_id)}};
    for (const LayerInfo& layer : info.layers) {
        const std::string group = concat("/layers/", layer.layer);
        facts["/layers"] += concat(facts["/layers"].empty() ? "" : ", ", layer.layer);
        add_attributes(layer, group, facts);
        for (Field field : kFields)
            if (layer.has(field))
                facts[concat(group, "/", to_string(field))] =
                    concat(to_string(layer.element), ", ",
                           has_head_axis(field) ? concat(layer.heads(field), " heads of ") : "",
                           layer.channels(field), " channels");
    }
    return facts;
}

void require_alike(const ActivationsFile& first, const ActivationsFile& other) {
    const Facts wanted = facts_of(first.info()), found = facts_of(other.info());
    const auto compare = [&](const std::string& place) {
        const auto value = [&](const Facts& facts) {
            const auto at = facts.find(place);
            return at == facts.end() ? std::string("missing") : at->second;
        };
        require(value(wanted) == value(found), other.path().string(), ": ", place, " is ",
                value(found), ", in ", first.path().string(), " it is ", value(wanted),
                "; captures that are read as one data set must agree in it");
    };
    Facts all = wanted;
    all.insert(found.begin(), found.end());
    for (const auto& [place, value] : all) compare(place);
}

std::vector<ActivationsFile> open_files(std::span<const std::filesystem::path> paths) {
    const h5::Lock lock;
    std::vector<ActivationsFile> files;
    for (const std::filesystem::path& path : paths) {
        for (const ActivationsFile& other : files) {
            std::error_code ignored;
            require(!std::filesystem::equivalent(path, other.path(), ignored), path.string(),
                    ": is named twice, its sequences would count twice");
        }
        files.emplace_back(path, h5::open_file(path));
        require_alike(files.front(), files.back());
    }
    return files;
}

std::vector<ActivationsFile> open_bytes(const std::filesystem::path& name,
                                        std::span<const uint8_t> bytes) {
    const h5::Lock lock;
    std::vector<ActivationsFile> files;
    files.emplace_back(name, h5::open_bytes(name, bytes));
    return files;
}

}  // namespace

struct ActivationsReader::Impl {
    std::vector<ActivationsFile> files;
    std::vector<Capture> captures;
    std::string name;
    ActivationsInfo info;

    explicit Impl(std::vector<ActivationsFile> opened) : files(std::move(opened)) {
        MSA_CHECK(!files.empty());
        info = files.front().info();
        info.cu_seqlens = {0};
        for (const ActivationsFile& file : files) {
            const int64_t first = info.tokens();
            captures.push_back({file.path(), std::ssize(info.cu_seqlens) - 1,
                                std::ssize(file.info().cu_seqlens) - 1, first,
                                file.info().tokens()});
            for (size_t s = 1; s < file.info().cu_seqlens.size(); ++s)
                info.cu_seqlens.push_back(first + file.info().cu_seqlens[s]);
            info.has_tokens = info.has_tokens && file.info().has_tokens;
            name += (name.empty() ? "" : ", ") + file.path().string();
        }
    }

    const LayerInfo& layer(int64_t number) const {
        std::string known;
        for (const LayerInfo& layer : info.layers) {
            if (layer.layer == number) return layer;
            known += (known.empty() ? "" : ", ") + std::to_string(layer.layer);
        }
        throw InputError(concat(name, ": has no layer ", number, "; there are: ", known));
    }

    void check_range(const LayerInfo& layer, Field field, QueryRange range) const {
        require(layer.has(field), field_place(files.front().path(), layer.layer, field).text(),
                " is missing");
        const int64_t rows = info.rows(layer, field);
        require(0 <= range.begin && range.begin <= range.end && range.end <= rows, name, ": ",
                rows_of(field), ' ', range.begin, ":", range.end,
                " asked for, must be within 0:", rows);
    }
};

ActivationsReader::ActivationsReader(const std::filesystem::path& path)
    : ActivationsReader(std::span(&path, 1)) {}

ActivationsReader::ActivationsReader(std::span<const std::filesystem::path> paths)
    : impl_(std::make_unique<Impl>(open_files(paths))) {}

ActivationsReader::ActivationsReader(const std::filesystem::path& name,
                                     std::span<const uint8_t> bytes)
    : impl_(std::make_unique<Impl>(open_bytes(name, bytes))) {}

ActivationsReader::~ActivationsReader() = default;
ActivationsReader::ActivationsReader(ActivationsReader&&) noexcept = default;
ActivationsReader& ActivationsReader::operator=(ActivationsReader&&) noexcept = default;

const std::string& ActivationsReader::name() const { return impl_->name; }
const std::vector<Capture>& ActivationsReader::captures() const { return impl_->captures; }
const ActivationsInfo& ActivationsReader::info() const { return impl_->info; }
const LayerInfo& ActivationsReader::layer(int64_t number) const { return impl_->layer(number); }

void ActivationsReader::read(int64_t number, Field field, QueryRange range, int64_t first_head,
                             View<float, 3> to) const {
    const LayerInfo& layer = impl_->layer(number);
    impl_->check_range(layer, field, range);
    require(to.extent(0) == range.end - range.begin && to.extent(2) == layer.channels(field) &&
                0 <= first_head && first_head + to.extent(1) <= layer.heads(field),
            impl_->name, ": a buffer of shape ", msa::to_string(to.shape()),
            " does not fit heads from ", first_head, " of /layers/", number, "/", to_string(field));
    int64_t first = 0;  // row of the file
    for (const ActivationsFile& file : impl_->files) {
        const int64_t rows = file.info().rows(layer, field);
        const int64_t begin = std::max(range.begin, first), end = std::min(range.end, first + rows);
        if (begin < end)
            file.read(layer, field, {begin - first, end - first}, first_head,
                      to.slice(begin - range.begin, end - begin));
        first += rows;
    }
}

Tensor<float, 3> ActivationsReader::read(int64_t number, Field field, QueryRange range) const {
    const LayerInfo& layer = impl_->layer(number);
    impl_->check_range(layer, field, range);
    Tensor<float, 3> values({range.end - range.begin, layer.heads(field), layer.channels(field)},
                            Fill::nothing);
    read(number, field, range, 0, values);
    return values;
}

Tensor<float, 3> ActivationsReader::gather(int64_t number, Field field,
                                           std::span<const int64_t> tokens) const {
    const LayerInfo& layer = impl_->layer(number);
    for (size_t i = 0; i < tokens.size(); ++i) {
        impl_->check_range(layer, field, {tokens[i], tokens[i] + 1});
        MSA_CHECK(i == 0 || tokens[i - 1] <= tokens[i]);
    }
    Tensor<float, 3> values(
        {static_cast<int64_t>(tokens.size()), layer.heads(field), layer.channels(field)},
        Fill::nothing);
    const int64_t row = layer.heads(field) * layer.channels(field);
    for (size_t i = 0; i < tokens.size();) {
        // All tokens wanted of one chunk, by one read of the span between them.
        const int64_t begin = tokens[i];
        const int64_t chunk_end = (begin / kChunkTokens + 1) * kChunkTokens;
        size_t last = i;
        bool each = true;  // token of the span, once
        for (; last + 1 < tokens.size() && tokens[last + 1] < chunk_end; ++last)
            each = each && tokens[last + 1] == tokens[last] + 1;
        const QueryRange span{begin, tokens[last] + 1};
        if (each) {
            read(number, field, span, 0,
                 values.view().slice(static_cast<int64_t>(i), span.end - begin));
            i = last + 1;
            continue;
        }
        const Tensor<float, 3> window = read(number, field, span);
        for (; i <= last; ++i)
            std::copy_n(window.data() + (tokens[i] - begin) * row, row,
                        values.data() + static_cast<int64_t>(i) * row);
    }
    return values;
}

std::vector<int32_t> ActivationsReader::tokens() const {
    const h5::Lock lock;
    std::vector<int32_t> values(static_cast<size_t>(impl_->info.tokens()));
    for (size_t f = 0; f < impl_->files.size(); ++f) {
        const Capture& of = impl_->captures[f];
        impl_->files[f].read_tokens(std::span(values).subspan(static_cast<size_t>(of.first_token),
                                                              static_cast<size_t>(of.tokens)));
    }
    return values;
}

}  // namespace msa::io
