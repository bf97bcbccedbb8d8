// SPDX-License-Identifier: MIT
// Memory of a backend whose element type is known at run time: float on the CPU, bf16 on a GPU.
#pragma once

#include <memory>

#include "core/backend.h"
#include "core/tensor.h"

namespace msa::train {

/// Owns; moves, does not copy. Zero-filled when it is made.
template <int Rank>
class Buffer {
public:
    Buffer() = default;
    Buffer(Backend& backend, Element element, Shape<Rank> shape)
        : storage_(backend.allocate(element_count(shape) * element_bytes(element))),
          all_(storage_.get(), shape, element, backend.space()) {}

    operator In<Rank>() const { return all_; }
    operator Out<Rank>() { return all_; }
    Out<Rank> out() { return all_; }
    In<Rank> in() const { return *this; }
    const Shape<Rank>& shape() const { return all_.shape(); }
    explicit operator bool() const { return static_cast<bool>(all_); }

private:
    std::shared_ptr<void> storage_;
    Out<Rank> all_;
};

/// The same elements in another shape of equal size.
template <int To, typename Void, int Rank>
AnyView<Void, To> reshaped(const AnyView<Void, Rank>& view, const Shape<To>& shape) {
    MSA_CHECK(element_count(shape) == element_count(view.shape()));
    return {view.data(), shape, view.element(), view.space()};
}

/// [n, H, d] as [n, H * d].
template <typename Void>
AnyView<Void, 2> flat(const AnyView<Void, 3>& heads) {
    const Shape<3>& s = heads.shape();
    return reshaped<2>(heads, {s[0], s[1] * s[2]});
}

/// All elements as one list.
template <typename Void, int Rank>
AnyView<Void, 1> as_list(const AnyView<Void, Rank>& view) {
    return reshaped<1>(view, {element_count(view.shape())});
}

}  // namespace msa::train
