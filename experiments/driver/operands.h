// SPDX-License-Identifier: MIT
// The operands of a layer, from a file to where a backend computes. One rule holds for every
// program and backend: an operand has exactly the values that the file stores, or, where the user
// asks for another element type, the nearest values of that type. A backend that has no arithmetic
// for a type gets the same values in float, which represents f16, bf16 and e4m3 exactly.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>

#include "core/backend.h"
#include "core/io/activations.h"
#include "core/io/results.h"
#include "core/number/convert.h"
#include "core/select/policy.h"

namespace msa::experiments {

/// --element and --index-element; absent: as the file stores them.
struct ElementChoice {
    std::optional<Element> main, index;
};

/// The type whose values some operands have, and the type that the backend computes them in.
struct ElementPair {
    Element values = Element::f32, computed = Element::f32;
    bool operator==(const ElementPair&) const = default;
};

/// Of one layer: q, k and v; the operands of its indexers.
struct LayerElements {
    ElementPair main, index;
    ElementPair of(io::Field) const;
    bool operator==(const LayerElements&) const = default;
};

/// What a layer's operands are on a backend. `computed` is `values` where the backend supports
/// dense and sparse attention and block mass (index scores and selection, for the index operands)
/// in that type, and f32 elsewhere.
LayerElements layer_elements(const Backend&, const io::LayerInfo&, const ElementChoice&);
/// The same for work that is done in float on every backend, as training is.
LayerElements float_elements(const io::LayerInfo&, const ElementChoice&);

/// Sets element, index_element and computed_in of the record; layers that differ are all named.
/// computed_in tells where attention outputs are rounded (driver/attend.h).
void record_elements(std::span<const LayerElements>, io::RunRecord&);
/// The same of layers of a file on a backend; index_element is empty where none has an Index
/// Branch.
void record_elements(const Backend&, const io::ActivationsReader&, std::span<const int64_t> layers,
                     const ElementChoice&, io::RunRecord&);
/// "Operands in f16, index operands in f16; computed in f32."
std::string elements_text(const io::RunRecord&);

/// Reads the fields of one layer, rounded to the values of `elements`. InputError where a value
/// does not fit into the type that was asked for.
class LayerReader {
public:
    LayerReader(const io::ActivationsReader& file, const io::LayerInfo& layer,
                const LayerElements& elements)
        : file_(&file), layer_(&layer), elements_(elements) {}

    /// All rows [N, heads, channels]; absent where the layer has no such field.
    Tensor<float, 3> all(io::Field) const;
    /// The given packed tokens, ascending; absent likewise.
    Tensor<float, 3> rows(io::Field, std::span<const int64_t> tokens) const;

    ReadLearned learned() const;  // outlives the reader, not what it reads from

private:
    Tensor<float, 3> rounded(io::Field, Tensor<float, 3> values) const;

    const io::ActivationsReader* file_;
    const io::LayerInfo* layer_;
    LayerElements elements_;
};

/// What a layer lacks for a policy on blocks of that size, as in "has no ..."; empty: nothing.
std::string lacking(const PolicyNeeds&, const io::LayerInfo&, int64_t block_size);

/// Rounds the values of a field to `element`; InputError naming file, layer and value where one is
/// beyond its range.
void round_field(const io::ActivationsReader&, int64_t layer, io::Field, Element element,
                 View<float, 3> values);

/// The rows [rows] of the first axis.
Tensor<float, 3> gather_rows(View<const float, 3> all, std::span<const int64_t> rows);

/// An operand in the backend's space: the host view itself where that is possible, else a copy in
/// `element`, which represents the values exactly or rounds them.
template <int Rank>
class Operand {
public:
    Operand(Backend& backend, View<const float, Rank> host, Element element = Element::f32)
        : view_(host) {
        if (!host || (backend.space() == Space::host && element == Element::f32)) return;
        const int64_t bytes = host.size() * element_bytes(element);
        copy_ = backend.allocate(bytes);
        view_ = In<Rank>(copy_.get(), host.shape(), element, backend.space());
        if (element == Element::f32) {
            backend.copy(copy_.get(), backend.space(), host.data(), host.space(), bytes);
            return;
        }
        const std::shared_ptr<void> stored = allocate_host(bytes, Fill::nothing);
        encode({host.data(), static_cast<size_t>(host.size())}, element, stored.get());
        backend.copy(copy_.get(), backend.space(), stored.get(), Space::host, bytes);
    }
    In<Rank> view() const { return view_; }

private:
    std::shared_ptr<void> copy_;
    In<Rank> view_;
};

/// What the backend wrote, on the host: the tensor itself, or a downloaded copy.
template <typename T, int Rank>
Tensor<T, Rank> fetch(Backend& backend, Tensor<T, Rank> there) {
    backend.finish();
    if (backend.space() == Space::host) return there;
    return backend.download(there.view());
}

/// The same as the host reads it: in place, or a downloaded copy. Absent stays absent.
template <int Rank>
class OnHost {
public:
    OnHost(Backend& backend, View<const float, Rank> there) : view_(there) {
        backend.finish();
        if (!there || backend.space() == Space::host) return;
        copy_ = backend.download(there);
        view_ = copy_;
    }
    View<const float, Rank> view() const { return view_; }

private:
    Tensor<float, Rank> copy_;
    View<const float, Rank> view_;
};

template <int Rank>
View<const float, Rank> host_view(const Tensor<float, Rank>& tensor) {
    return tensor.view();
}
/// One head's rows [n, 1, width] as a matrix.
inline View<const float, 2> rows_of(View<const float, 3> one_head) {
    return {one_head.data(), {one_head.extent(0), one_head.extent(2)}, one_head.space()};
}

}  // namespace msa::experiments
