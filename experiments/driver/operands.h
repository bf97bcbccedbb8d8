// SPDX-License-Identifier: MIT
// Moves the operands of a layer from a file to a backend. One rule holds for every program and
// backend: an operand has exactly the stored values or, if the user chooses another element type,
// the nearest values of that type. A backend that does not compute in a type gets the same values
// in float, which represents f16, bf16 and e4m3 exactly.
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

/// The type of operands' values, and the type in which the backend computes with them.
struct ElementPair {
    Element values = Element::f32, computed = Element::f32;
    bool operator==(const ElementPair&) const = default;
};

/// Element types of a layer: of q, k and v, and of its indexers' operands.
struct LayerElements {
    ElementPair main, index;
    ElementPair of(io::Field) const;
    bool operator==(const LayerElements&) const = default;
};

/// The element types of a layer's operands on a backend. `computed` is `values` if the backend
/// supports dense and sparse attention and block mass (for index operands: index scores and
/// selection) in that type, else f32.
LayerElements layer_elements(const Backend&, const io::LayerInfo&, const ElementChoice&);
/// The same for work that every backend does in float, like training.
LayerElements float_elements(const io::LayerInfo&, const ElementChoice&);

/// Sets element, index_element and computed_in of the record; if layers differ, all are named.
/// computed_in also says if attention outputs are rounded (driver/attend.h).
void record_elements(std::span<const LayerElements>, io::RunRecord&);
/// The same for layers of a file on a backend; index_element is empty if none has an Index Branch.
void record_elements(const Backend&, const io::ActivationsReader&, std::span<const int64_t> layers,
                     const ElementChoice&, io::RunRecord&);
/// "Operands in f16, index operands in f16; computed in f32."
std::string elements_text(const io::RunRecord&);

/// Reads the fields of one layer, rounded to `elements`. InputError if a value is out of range of
/// the chosen type.
class LayerReader {
public:
    LayerReader(const io::ActivationsReader& file, const io::LayerInfo& layer,
                const LayerElements& elements)
        : file_(&file), layer_(&layer), elements_(elements) {}

    /// All rows [N, heads, channels]; absent where the layer has no such field.
    Tensor<float, 3> all(io::Field) const;
    /// The given packed tokens, ascending; absent likewise.
    Tensor<float, 3> rows(io::Field, std::span<const int64_t> tokens) const;

    ReadLearned learned() const;  // outlives this reader, but not the file

private:
    Tensor<float, 3> rounded(io::Field, Tensor<float, 3> values) const;

    const io::ActivationsReader* file_;
    const io::LayerInfo* layer_;
    LayerElements elements_;
};

/// What a layer lacks for a policy on blocks of that size, to follow "has no"; empty: nothing.
std::string lacking(const PolicyNeeds&, const io::LayerInfo&, int64_t block_size);

/// Rounds the values of a field to `element`; InputError naming file, layer and value if one is out
/// of range.
void round_field(const io::ActivationsReader&, int64_t layer, io::Field, Element element,
                 View<float, 3> values);

/// The rows [rows] of the first axis.
Tensor<float, 3> gather_rows(View<const float, 3> all, std::span<const int64_t> rows);

/// An operand in the backend's space: the host view itself if possible, else a copy in `element`,
/// which represents the values exactly or rounds them.
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

/// A backend's result on the host: the tensor itself, or a downloaded copy.
template <typename T, int Rank>
Tensor<T, Rank> fetch(Backend& backend, Tensor<T, Rank> there) {
    backend.finish();
    if (backend.space() == Space::host) return there;
    return backend.download(there.view());
}

/// A view's values on the host: in place, or a downloaded copy. Absent stays absent.
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
