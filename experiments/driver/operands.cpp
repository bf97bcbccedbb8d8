// SPDX-License-Identifier: MIT
#include "experiments/driver/operands.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "experiments/driver/attend.h"
#include "experiments/report/text.h"

namespace msa::experiments {
namespace {

using io::Field;

LayerElements wanted(const io::LayerInfo& layer, const ElementChoice& choice) {
    return {{choice.main.value_or(layer.element), Element::f32},
            {choice.index.value_or(layer.element), Element::f32}};
}

/// The values' own type where the backend has every operation of `requests` in it for a layer.
void compute_in_own(const Backend& backend, const io::LayerInfo& layer,
                    std::initializer_list<Request> requests, ElementPair& pair) {
    const Problem sizes = io::layer_problem({}, layer, kMaxBlockSize);
    const bool all = std::all_of(requests.begin(), requests.end(), [&](const Request& request) {
        return backend.supports(sizes, request).yes;
    });
    if (all) pair.computed = pair.values;
}

/// "f16", or "f16, f32" where layers differ.
std::string names(std::span<const LayerElements> layers, ElementPair LayerElements::*which,
                  Element ElementPair::*element) {
    std::vector<std::string> known;
    for (const LayerElements& layer : layers) {
        const std::string name = to_string(layer.*which.*element);
        if (std::find(known.begin(), known.end(), name) == known.end()) known.push_back(name);
    }
    return join(known);
}

}  // namespace

ElementPair LayerElements::of(Field field) const {
    if (field == Field::x) return {};
    return io::is_of_index(field) ? index : main;
}

LayerElements layer_elements(const Backend& backend, const io::LayerInfo& layer,
                             const ElementChoice& choice) {
    LayerElements elements = wanted(layer, choice);
    const Element main = elements.main.values, index = elements.index.values;
    compute_in_own(backend, layer,
                   {DenseAttentionRequest{main}, SparseAttentionRequest{.element = main},
                    BlockMassRequest{main}},
                   elements.main);
    compute_in_own(backend, layer,
                   {IndexScoresRequest{index}, IndexSelectRequest{.element = index}},
                   elements.index);
    return elements;
}

LayerElements float_elements(const io::LayerInfo& layer, const ElementChoice& choice) {
    return wanted(layer, choice);
}

void record_elements(std::span<const LayerElements> layers, io::RunRecord& record) {
    record.element = names(layers, &LayerElements::main, &ElementPair::values);
    record.index_element = names(layers, &LayerElements::index, &ElementPair::values);
    record.computed_in = names(layers, &LayerElements::main, &ElementPair::computed);
    const std::string index = names(layers, &LayerElements::index, &ElementPair::computed);
    if (index != record.computed_in) record.computed_in += "; the index in " + index;
    for (const Element element : {Element::bf16, Element::f16})
        if (std::any_of(layers.begin(), layers.end(), [&](const LayerElements& of) {
                return of.main.computed == element && is_stored_in_operands(element);
            }))
            record.computed_in += concat("; attention outputs on ", to_string(element),
                                         " operands in ", to_string(element));
}

void record_elements(const Backend& backend, const io::ActivationsReader& file,
                     std::span<const int64_t> layers, const ElementChoice& choice,
                     io::RunRecord& record) {
    std::vector<LayerElements> elements;
    bool has_index = false;
    for (int64_t number : layers) {
        const io::LayerInfo& layer = file.layer(number);
        elements.push_back(layer_elements(backend, layer, choice));
        for (Field field : {Field::index_q, Field::dsa_q, Field::gate_q, Field::qsa_q})
            has_index |= layer.has(field);
    }
    require(has_index || !choice.index,
            "--index-element rounds operands of an indexer, and the layers have none; "
            "msa-fit-indexer makes them");
    record_elements(elements, record);
    if (!has_index) record.index_element.clear();
}

std::string elements_text(const io::RunRecord& record) {
    const std::string index =
        record.index_element.empty() ? "" : ", index operands in " + record.index_element;
    return concat("Operands in ", record.element, index, "; computed in ", record.computed_in, ".");
}

void round_field(const io::ActivationsReader& file, int64_t layer, Field field, Element element,
                 View<float, 3> values) {
    if (field == Field::x || element == Element::f32) return;
    const double largest = largest_value(element);
    for (int64_t i = 0; i < values.size(); ++i)
        require(std::fabs(values.data()[i]) <= largest, file.name(), ": /layers/", layer, "/",
                to_string(field), " holds ", values.data()[i], ", which is beyond the ", largest,
                " that ", io::is_of_index(field) ? "--index-element " : "--element ",
                to_string(element), " can hold");
    round_to(element, {values.data(), static_cast<size_t>(values.size())});
}

Tensor<float, 3> LayerReader::rounded(Field field, Tensor<float, 3> values) const {
    // What the file stores is representable in the file's own type.
    if (const Element element = elements_.of(field).values; element != layer_->element)
        round_field(*file_, layer_->layer, field, element, values);
    return values;
}

Tensor<float, 3> LayerReader::all(Field field) const {
    if (!layer_->has(field)) return {};
    return rounded(field,
                   file_->read(layer_->layer, field, {0, file_->info().rows(*layer_, field)}));
}

Tensor<float, 3> LayerReader::rows(Field field, std::span<const int64_t> tokens) const {
    if (!layer_->has(field)) return {};
    return rounded(field, file_->gather(layer_->layer, field, tokens));
}

ReadLearned LayerReader::learned() const {
    return [read = *this](LearnedOperand operand, std::span<const int64_t> tokens) {
        constexpr Field kFields[] = {Field::dsa_q,  Field::dsa_k, Field::dsa_w, Field::gate_q,
                                     Field::gate_k, Field::qsa_q, Field::qsa_k};
        const Field field = kFields[static_cast<size_t>(operand)];
        return tokens.empty() ? read.all(field) : read.rows(field, tokens);
    };
}

std::string lacking(const PolicyNeeds& needs, const io::LayerInfo& layer, int64_t block_size) {
    const bool index = layer.has(Field::index_q), dsa = layer.has(Field::dsa_q);
    if (needs.index && !index) return "index_q and index_k";
    if (needs.lightning && !index && !dsa)
        return "dsa_q, dsa_k and dsa_w, nor index_q and index_k in their place";
    if (needs.qsa && !index && !layer.has(Field::qsa_q))
        return "qsa_q and qsa_k, nor index_q and index_k in their place";
    if (needs.gate && !layer.has(Field::gate_q)) return "gate_q and gate_k";
    if (needs.gate && layer.learned.gate_block_size != block_size)
        return concat("gate_q and gate_k for blocks of ", block_size, " tokens (they are for ",
                      layer.learned.gate_block_size, ")");
    if (needs.rope && !io::stored_rope(layer))
        return "rotary_dim and rope_theta, nor rope_inv_freq in their place";
    return "";
}

Tensor<float, 3> gather_rows(View<const float, 3> all, std::span<const int64_t> rows) {
    Tensor<float, 3> gathered({std::ssize(rows), all.extent(1), all.extent(2)}, Fill::nothing);
    for (int64_t n = 0; n < std::ssize(rows); ++n)
        std::copy_n(all[rows.data()[n]].data(), all.extent(1) * all.extent(2),
                    gathered.view()[n].data());
    return gathered;
}

}  // namespace msa::experiments
