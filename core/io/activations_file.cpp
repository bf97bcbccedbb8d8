// SPDX-License-Identifier: MIT
#include "core/io/activations_file.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/indexer/qsa_kl.h"
#include "core/io/config_heads.h"
#include "core/io/layer_attributes.h"
#include "core/io/layout.h"
#include "core/number/convert.h"

namespace msa::io {
namespace {

RopeState rope_state(hid_t group, const std::string& name, const h5::Place& place) {
    const std::string value = h5::text_attribute(group, name, place);
    for (RopeState state : {RopeState::post_rope, RopeState::pre_rope, RopeState::none})
        if (value == to_string(state)) return state;
    throw InputError(concat(place.text(), " attribute ", name, " is '", value,
                            "', must be post_rope, pre_rope or none"));
}

/// A dataset of a layer: its shape and element, checked for rank and length.
struct FieldShape {
    std::vector<int64_t> shape;
    Element element = Element::f32;
};

FieldShape field_shape(hid_t file, const h5::Place& place, Field field) {
    const h5::Handle dataset = h5::open_dataset(file, place);
    FieldShape found{h5::extents(dataset), {}};
    const std::optional<Element> element = h5::element(dataset, place);
    require(element == Element::f16 || element == Element::bf16 || element == Element::f32,
            place.text(), " is ", element ? to_string(*element) : "of another type",
            ", must be float16, float32, or uint16 with logical_dtype = \"bfloat16\"");
    found.element = *element;
    require(found.shape.size() == field_rank(field), place.text(), " has rank ", found.shape.size(),
            ", must be ", field_rank(field));
    return found;
}

/// "token"
std::string row_name(Field field) {
    std::string name = rows_of(field);
    name.pop_back();
    return name;
}

/// A dataset has a row for each token, gate_k for each block, qsa_k for each piece.
void check_rows(int64_t found, std::span<const int64_t> cu_seqlens, const LayerInfo& layer,
                Field field, const h5::Place& place) {
    const int64_t rows = row_count(cu_seqlens, layer, field);
    const bool gate = field == Field::gate_k;
    if (gate || field == Field::qsa_k)
        require(found == rows, place.text(), " has ", found, " ", rows_of(field),
                ", the sequences of /cu_seqlens have ", rows, " of ",
                gate ? "gate_block_size" : "qsa_compress", " = ",
                gate ? layer.learned.gate_block_size : layer.learned.qsa_compress,
                " tokens; they must agree");
    else
        require(found == rows, place.text(), " has ", found, " tokens, /cu_seqlens ends at ", rows,
                "; they must agree");
}

void check_dims(int64_t value, const h5::Place& place, const char* what, int64_t least,
                int64_t most) {
    require(least <= value && value <= most, place.text(), " has ", what, " ", value,
            ", must be from ", least, " to ", most);
}
void check_index_dims(int64_t value, const h5::Place& place, const char* what) {
    check_dims(value, place, what, kMinIndexDim, kMaxIndexDim);
}

/// The model's own head counts, where its config names them, against those of a layer.
void check_config(const nlohmann::json& config, const LayerInfo& layer, const std::string& file) {
    const std::optional<int64_t> kv = config_kv_heads(config, layer.layer),
                                 query = config_query_heads(config, layer.layer);
    require(kv.value_or(layer.kv_heads) == layer.kv_heads, file, ": /layers/", layer.layer,
            "/k has ", layer.kv_heads, " heads, model_config names ", kv.value_or(0),
            " key-value heads for this layer; K and V must not be repeated to the query heads");
    require(query.value_or(layer.query_heads) == layer.query_heads, file, ": /layers/", layer.layer,
            "/q has ", layer.query_heads, " heads, model_config names ", query.value_or(0),
            " for this layer");
}

/// DSA's indexer, where the layer has one. `place` and `shape` are of a field.
template <typename Place, typename Shape>
void read_dsa(hid_t file, Place place, Shape shape, LayerInfo& layer) {
    constexpr Field kDsa[] = {Field::dsa_q, Field::dsa_k, Field::dsa_w};
    const auto there = [&](Field field) { return h5::exists(file, place(field).object); };
    if (std::none_of(std::begin(kDsa), std::end(kDsa), there)) return;
    for (Field field : kDsa)
        require(there(field), place(field).text(),
                " is missing; dsa_q, dsa_k and dsa_w come together");
    const std::vector<int64_t> q = shape(Field::dsa_q), k = shape(Field::dsa_k),
                               w = shape(Field::dsa_w);
    require(q[1] >= 1, place(Field::dsa_q).text(), " has no heads");
    require(w[1] == q[1], place(Field::dsa_w).text(), " has weights of ", w[1],
            " heads, dsa_q has ", q[1]);
    require(q[2] == k[1], place(Field::dsa_k).text(), " has index dim ", k[1], ", dsa_q has ",
            q[2]);
    layer.learned.dsa_heads = q[1];
    layer.learned.dsa_dim = q[2];
    check_index_dims(layer.learned.dsa_dim, place(Field::dsa_k), "index dim");
}

/// The attribute `name`, an integer from `least` to `most`, which the keys `of` need.
int64_t key_tokens(hid_t group, const h5::Place& at, const char* name, int64_t least, int64_t most,
                   Field of) {
    require(h5::has_attribute(group, name), at.text(), " has no attribute ", name, ", which ",
            to_string(of), " needs");
    const double value = h5::number_attribute(group, name, at);
    require(static_cast<double>(least) <= value && value <= static_cast<double>(most) &&
                value == std::floor(value),
            at.text(), " attribute ", name, " is ", value, ", must be an integer from ", least,
            " to ", most);
    return static_cast<int64_t>(value);
}

/// SeerAttention's gate, where the layer has one.
template <typename Place, typename Shape>
void read_gate(hid_t file, hid_t group, const h5::Place& at, Place place, Shape shape,
               LayerInfo& layer) {
    const auto there = [&](Field field) { return h5::exists(file, place(field).object); };
    const bool has_q = there(Field::gate_q), has_k = there(Field::gate_k);
    if (!has_q && !has_k) return;
    require(has_q && has_k, place(has_q ? Field::gate_k : Field::gate_q).text(),
            " is missing; gate_q and gate_k come together");
    layer.learned.gate_block_size =
        key_tokens(group, at, "gate_block_size", kMinBlockSize, kMaxBlockSize, Field::gate_k);
    const std::vector<int64_t> q = shape(Field::gate_q), k = shape(Field::gate_k);
    for (const auto& [field, heads] : {std::pair{Field::gate_q, q[1]}, {Field::gate_k, k[1]}})
        require(heads == layer.kv_heads, place(field).text(), " has ", heads, " heads, k has ",
                layer.kv_heads, "; there is one head of the gate per GQA group");
    require(q[2] == k[2], place(Field::gate_k).text(), " has gate dim ", k[2], ", gate_q has ",
            q[2]);
    layer.learned.gate_dim = q[2];
    check_index_dims(layer.learned.gate_dim, place(Field::gate_k), "gate dim");
}

/// QSA's indexer, where the layer has one.
template <typename Place, typename Shape>
void read_qsa(hid_t file, hid_t group, const h5::Place& at, Place place, Shape shape,
              LayerInfo& layer) {
    const auto there = [&](Field field) { return h5::exists(file, place(field).object); };
    const bool has_q = there(Field::qsa_q), has_k = there(Field::qsa_k);
    if (!has_q && !has_k) return;
    require(has_q && has_k, place(has_q ? Field::qsa_k : Field::qsa_q).text(),
            " is missing; qsa_q and qsa_k come together");
    layer.learned.qsa_compress =
        key_tokens(group, at, "qsa_compress", 1, kMostCompress, Field::qsa_k);
    const std::vector<int64_t> q = shape(Field::qsa_q), k = shape(Field::qsa_k);
    require(q[1] >= 1, place(Field::qsa_q).text(), " has no heads");
    require(q[2] == k[1], place(Field::qsa_k).text(), " has index dim ", k[1], ", qsa_q has ",
            q[2]);
    layer.learned.qsa_heads = q[1];
    layer.learned.qsa_dim = q[2];
    check_index_dims(layer.learned.qsa_dim, place(Field::qsa_k), "index dim");
}

LayerInfo read_layer(hid_t file, const std::filesystem::path& path, int64_t number,
                     std::span<const int64_t> cu_seqlens) {
    LayerInfo layer;
    layer.layer = number;
    const h5::Place at{path, concat("/layers/", number)};
    const h5::Handle group = h5::open_object(file, at);
    require(H5Iget_type(group) == H5I_GROUP, at.text(), " must be a group");
    layer.q_state = rope_state(group, "q_state", at);
    layer.k_state = rope_state(group, "k_state", at);
    const auto place = [&](Field field) { return field_place(path, number, field); };
    const auto shape = [&](Field field) {
        FieldShape found = field_shape(file, place(field), field);
        check_rows(found.shape[0], cu_seqlens, layer, field, place(field));
        if (field == Field::q) layer.element = found.element;
        require(found.element == layer.element, place(field).text(), " is ",
                to_string(found.element), ", q is ", to_string(layer.element),
                "; a layer has one element type");
        return found.shape;
    };
    const std::vector<int64_t> q = shape(Field::q), k = shape(Field::k), v = shape(Field::v);
    layer.query_heads = q[1];
    layer.kv_heads = k[1];
    layer.head_dim = q[2];
    check_dims(layer.head_dim, place(Field::q), "head dim", kMinHeadDim, kMaxHeadDim);
    require(k[2] == q[2], place(Field::k).text(), " has head dim ", k[2], ", q has ", q[2]);
    require(v == k, place(Field::v).text(), " has ", v[1], " heads of ", v[2], ", k has ", k[1],
            " of ", k[2], "; they must agree");
    require(
        layer.kv_heads >= 1 && layer.query_heads >= 1 && layer.query_heads % layer.kv_heads == 0,
        place(Field::q).text(), " has ", layer.query_heads, " heads, k has ", layer.kv_heads,
        "; Hq must be a positive multiple of Hkv");

    const bool has_index_q = h5::exists(file, place(Field::index_q).object);
    const bool has_index_k = h5::exists(file, place(Field::index_k).object);
    require(has_index_q == has_index_k, place(has_index_q ? Field::index_k : Field::index_q).text(),
            " is missing; index_q and index_k come together");
    if (has_index_q) {
        const std::vector<int64_t> index_q = shape(Field::index_q), index_k = shape(Field::index_k);
        require(index_q[1] == layer.kv_heads, place(Field::index_q).text(), " has ", index_q[1],
                " heads, k has ", layer.kv_heads, "; there is one index head per GQA group");
        require(index_q[2] == index_k[1], place(Field::index_k).text(), " has index dim ",
                index_k[1], ", index_q has ", index_q[2]);
        layer.index_dim = index_k[1];
        check_index_dims(layer.index_dim, place(Field::index_k), "index dim");
    }
    read_dsa(file, place, shape, layer);
    read_gate(file, group, at, place, shape, layer);
    read_qsa(file, group, at, place, shape, layer);
    if (h5::exists(file, place(Field::x).object)) {
        layer.model_dim = shape(Field::x)[1];
        require(layer.model_dim >= 1, place(Field::x).text(), " has no columns");
    }
    read_attributes(group, at, layer);
    for (Field field : kFields)
        if (layer.has(field))
            h5::require_written(h5::open_dataset(file, place(field)), place(field));
    return layer;
}

std::vector<int64_t> read_cu_seqlens(hid_t file, const std::filesystem::path& path) {
    const h5::Place at{path, "/cu_seqlens"};
    const h5::Handle dataset = h5::open_dataset(file, at);
    const std::vector<int64_t> shape = h5::extents(dataset);
    constexpr int64_t kMostSequences = int64_t{1} << 28;
    require(shape.size() == 1 && shape[0] >= 2 && shape[0] <= kMostSequences, at.text(),
            " must be a list of at least 2 integers");
    h5::require_written(dataset, at);
    const h5::Handle type(H5Dget_type(dataset), H5Tclose);
    require(H5Tget_class(type) == H5T_INTEGER, at.text(), " must hold integers");
    std::vector<int64_t> values(static_cast<size_t>(shape[0]));
    h5::read(dataset, H5T_NATIVE_INT64, {{0}, {values.size()}}, values.data(), at);
    require(values[0] == 0, at.text(), " starts at ", values[0], ", must start at 0");
    for (size_t s = 1; s < values.size(); ++s)
        require(values[s - 1] < values[s], at.text(), "[", s, "] is ", values[s],
                ", must be above the entry before it = ", values[s - 1]);
    return values;
}

/// Token ids, checked for all but their values.
h5::Handle open_tokens(hid_t file, const h5::Place& at, int64_t tokens) {
    h5::Handle dataset = h5::open_dataset(file, at);
    require(h5::extents(dataset) == std::vector{tokens}, at.text(),
            " must have one entry per token = ", tokens);
    require(H5Tget_class(h5::Handle(H5Dget_type(dataset), H5Tclose)) == H5T_INTEGER, at.text(),
            " must hold integers");
    h5::require_written(dataset, at);
    return dataset;
}

/// The text, where the file has one: a token's bytes begin where those of the token before it end.
void check_text(hid_t file, const std::filesystem::path& path, int64_t tokens) {
    const h5::Place text{path, "/text"}, at{path, "/token_ends"};
    const bool has_text = h5::exists(file, "/text"), has_ends = h5::exists(file, "/token_ends");
    require(has_text == has_ends, (has_text ? at : text).text(),
            " is missing; text and token_ends come together");
    if (!has_text) return;
    const h5::Handle bytes = h5::open_dataset(file, text), dataset = h5::open_dataset(file, at);
    const h5::Handle byte(H5Dget_type(bytes), H5Tclose), type(H5Dget_type(dataset), H5Tclose);
    const std::vector<int64_t> size = h5::extents(bytes);
    require(size.size() == 1 && H5Tget_class(byte) == H5T_INTEGER && H5Tget_size(byte) == 1,
            text.text(), " must be a list of bytes (uint8)");
    require(h5::extents(dataset) == std::vector{tokens} && H5Tget_class(type) == H5T_INTEGER,
            at.text(), " must have one integer per token = ", tokens);
    h5::require_written(bytes, text);
    h5::require_written(dataset, at);
    std::vector<int64_t> ends(static_cast<size_t>(tokens));
    h5::read(dataset, H5T_NATIVE_INT64, {{0}, {ends.size()}}, ends.data(), at);
    int64_t before = 0;
    for (size_t i = 0; i < ends.size(); before = ends[i++])
        require(before <= ends[i], at.text(), "[", i, "] is ", ends[i],
                ", must not be below the entry before it = ", before);
    require(before == size[0], at.text(), " ends at ", before, ", /text has ", size[0],
            " bytes; they must agree");
}

ActivationsInfo read_info(hid_t file, const std::filesystem::path& path) {
    ActivationsInfo info;
    const h5::Place root{path, "/"};
    const h5::Handle group = open_root(file, root, kActivationsFormat, kActivationsVersion);
    info.model_id = h5::text_attribute(group, "model_id", root);
    info.model_config = h5::text_attribute(group, "model_config", root);
    info.producer = h5::text_attribute(group, "producer", root);
    const nlohmann::json config = nlohmann::json::parse(info.model_config, nullptr, false);
    require(!config.is_discarded(), root.text(), " attribute model_config is not JSON");

    info.cu_seqlens = read_cu_seqlens(file, path);
    info.has_tokens = h5::exists(file, "/tokens");
    if (info.has_tokens) open_tokens(file, {path, "/tokens"}, info.tokens());
    check_text(file, path, info.tokens());
    const h5::Handle layers = h5::open_object(file, {path, "/layers"});
    for (const std::string& name : h5::links(layers)) {
        const bool number = !name.empty() && name.size() <= 9 &&
                            name.find_first_not_of("0123456789") == std::string::npos;
        require(number && concat(std::stoll(name)) == name, path.string(), ": /layers/", name,
                " is no layer number");
        info.layers.push_back(read_layer(file, path, std::stoll(name), info.cu_seqlens));
        check_config(config, info.layers.back(), path.string());
    }
    require(!info.layers.empty(), path.string(), ": /layers is empty");
    return info;
}

}  // namespace

ActivationsFile::ActivationsFile(std::filesystem::path path, h5::Handle opened)
    : path_(std::move(path)), file_(std::move(opened)), info_(read_info(file_, path_)) {
    for (const LayerInfo& layer : info_.layers) check_not_repeated(layer);
}

h5::Handle ActivationsFile::open(const LayerInfo& layer, Field field) const {
    const h5::Place place = field_place(path_, layer.layer, field);
    // Room for the chunks of all heads of one token range, so that none is unpacked twice.
    const auto bytes = static_cast<size_t>(kChunkTokens * layer.heads(field) *
                                           layer.channels(field) * element_bytes(layer.element));
    const h5::Handle access(H5Pcreate(H5P_DATASET_ACCESS), H5Pclose);
    H5Pset_chunk_cache(access, 12421, std::max(bytes, size_t{1} << 20), 1.0);
    h5::Handle dataset(H5Dopen2(file_, place.object.c_str(), access), H5Dclose);
    require(static_cast<bool>(dataset), place.text(), " is missing");
    return dataset;
}

/// A slab as floats, whatever is in it. Other threads may read while it is converted.
void ActivationsFile::read_raw(const LayerInfo& layer, Field field, QueryRange range,
                               int64_t first_head, View<float, 3> to) const {
    const auto read_as_stored = [&](void* values) {
        const h5::Lock lock;
        h5::read(open(layer, field), h5::memory_type(layer.element),
                 field_slab(field, range.begin, first_head, to.shape()), values,
                 field_place(path_, layer.layer, field));
    };
    if (layer.element == Element::f32) {
        read_as_stored(to.data());
        return;
    }
    const std::shared_ptr<void> raw =
        allocate_host(to.size() * element_bytes(layer.element), Fill::nothing);
    read_as_stored(raw.get());
    decode(raw.get(), layer.element, {to.data(), static_cast<size_t>(to.size())});
}

/// Throws with the count of NaN and Inf in the whole dataset and the first of them.
void ActivationsFile::report_non_finite(const LayerInfo& layer, Field field) const {
    int64_t count = 0;
    std::string first;
    const Shape<3> shape{0, layer.heads(field), layer.channels(field)};
    const int64_t rows = info_.rows(layer, field);
    for (int64_t begin = 0; begin < rows; begin += kChunkTokens) {
        const int64_t end = std::min(begin + kChunkTokens, rows);
        Tensor<float, 3> window({end - begin, shape[1], shape[2]});
        read_raw(layer, field, {begin, end}, 0, window);
        for (int64_t i = 0; i < window.size(); ++i) {
            if (std::isfinite(window.data()[i])) continue;
            if (count++ == 0)
                first = concat(row_name(field), ' ', begin + i / (shape[1] * shape[2]), ", head ",
                               i / shape[2] % shape[1], ", channel ", i % shape[2], " is ",
                               window.data()[i]);
        }
    }
    throw InputError(concat(field_place(path_, layer.layer, field).text(), " holds ", count,
                            " values that are NaN or Inf, must hold none; the first: ", first));
}

/// Where Hq = Hkv, K and V of the last token show whether a group's head was written once per
/// query head: two heads alike in every channel of both.
void ActivationsFile::check_not_repeated(const LayerInfo& layer) const {
    if (layer.query_heads != layer.kv_heads || layer.kv_heads < 2) return;
    const int64_t dim = layer.head_dim;
    for (Field field : {Field::k, Field::v}) {
        Tensor<float, 3> last({1, 2, dim});
        read_raw(layer, field, {info_.tokens() - 1, info_.tokens()}, 0, last);
        const float* head = last.data();
        const bool constant = std::all_of(head, head + dim, [&](float c) { return c == *head; });
        if (constant || !std::equal(head, head + dim, head + dim)) return;
    }
    throw InputError(concat(field_place(path_, layer.layer, Field::k).text(), " has ",
                            layer.kv_heads,
                            " heads, as many as q, and heads 0 and 1 are the "
                            "same; K and V must not be repeated to the query heads"));
}

void ActivationsFile::read(const LayerInfo& layer, Field field, QueryRange range,
                           int64_t first_head, View<float, 3> to) const {
    read_raw(layer, field, range, first_head, to);
    if (!Eigen::Map<const Eigen::ArrayXf>(to.data(), to.size()).isFinite().all())
        report_non_finite(layer, field);
}

void ActivationsFile::read_tokens(std::span<int32_t> to) const {
    const h5::Place at{path_, "/tokens"};
    const h5::Handle dataset = open_tokens(file_, at, info_.tokens());
    h5::read(dataset, H5T_NATIVE_INT32, {{0}, {to.size()}}, to.data(), at);
}

}  // namespace msa::io
