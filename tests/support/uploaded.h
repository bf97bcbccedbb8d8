// SPDX-License-Identifier: MIT
// Operands and outputs whose element type a test takes as a parameter.
#pragma once

#include <memory>

#include "core/backend.h"
#include "core/number/convert.h"

namespace msa::test {

/// A tensor in a backend's space, of f32, f16, bf16 or e4m3.
template <int Rank>
class Uploaded {
public:
    Uploaded() = default;
    /// The nearest values of `element`.
    Uploaded(Backend& backend, Element element, View<const float, Rank> host)
        : backend_(&backend), element_(element), shape_(host.shape()) {
        memory_ = backend.allocate(bytes());
        assign(host);
    }
    void assign(View<const float, Rank> host) {
        const std::shared_ptr<void> stored = allocate_host(bytes());
        encode({host.data(), static_cast<size_t>(host.size())}, element_, stored.get());
        backend_->copy(data(), backend_->space(), stored.get(), Space::host, bytes());
    }
    Tensor<float, Rank> download() const {
        const std::shared_ptr<void> stored = allocate_host(bytes());
        backend_->copy(stored.get(), Space::host, data(), backend_->space(), bytes());
        Tensor<float, Rank> host(shape_);
        decode(stored.get(), element_, {host.data(), static_cast<size_t>(host.size())});
        return host;
    }

    void* data() const { return memory_.get(); }
    const Shape<Rank>& shape() const { return shape_; }
    int64_t bytes() const { return element_count(shape_) * element_bytes(element_); }
    operator In<Rank>() const { return {data(), shape_, element_, backend_->space()}; }
    operator Out<Rank>() const { return {data(), shape_, element_, backend_->space()}; }

private:
    Backend* backend_ = nullptr;
    Element element_ = Element::f32;
    Shape<Rank> shape_{};
    std::shared_ptr<void> memory_;
};

}  // namespace msa::test
