// SPDX-License-Identifier: MIT
// One tensor in two places: a backend's space and the host. It is created in one and copied to the
// other on first use, so nothing is copied that nobody reads.
#pragma once

#include <memory>
#include <utility>

#include "core/backend.h"
#include "core/number/convert.h"

namespace msa {

/// Copies of a Mirror share the tensor. Not for several threads at once.
template <int Rank>
class Mirror {
public:
    /// Absent.
    Mirror() = default;
    /// A tensor that the caller keeps alive: of any element in the backend's space, or floats on
    /// the host.
    Mirror(Backend& backend, In<Rank> tensor) : state_(std::make_shared<State>(backend)) {
        (tensor.space() == backend.space() ? state_->there : state_->here) = tensor;
    }
    /// The same tensor in both places, kept alive by the caller.
    Mirror(Backend& backend, In<Rank> there, View<const float, Rank> here)
        : Mirror(backend, there) {
        state_->here = here;
    }
    /// Floats in either place.
    Mirror(Backend& backend, Tensor<float, Rank> tensor) : Mirror(backend, In<Rank>(tensor)) {
        state_->made = std::move(tensor);
    }

    explicit operator bool() const { return state_ != nullptr; }
    const Shape<Rank>& shape() const {
        return state_->there ? state_->there.shape() : state_->here.shape();
    }

    /// The tensor in the backend's space, in its stored element type.
    In<Rank> operand() const {
        if (!state_) return {};
        return state_->there ? state_->there : In<Rank>(floats());
    }
    /// The tensor in the backend's space, as floats.
    View<const float, Rank> floats() const {
        if (!state_) return {};
        State& s = *state_;
        if (s.there && s.there.element() == Element::f32) return as_floats(s.there);
        if (!s.uploaded.data()) s.uploaded = s.backend.upload(host());
        return std::as_const(s.uploaded).view();
    }
    /// The tensor on the host, as floats. Waits for pending calls that write it.
    View<const float, Rank> host() const {
        if (!state_) return {};
        State& s = *state_;
        if (!s.here) {
            s.backend.finish();
            const bool in_place =
                s.there.space() == Space::host && s.there.element() == Element::f32;
            if (!in_place) s.downloaded = download(s.backend, s.there);
            s.here = in_place ? s.there : In<Rank>(s.downloaded);
        }
        return as_floats(s.here);
    }

private:
    struct State {
        explicit State(Backend& of) : backend(of) {}
        Backend& backend;
        In<Rank> there, here;
        Tensor<float, Rank> made, uploaded, downloaded;
    };

    static View<const float, Rank> as_floats(const In<Rank>& view) {
        return view.template as<const float>();
    }
    static Tensor<float, Rank> download(Backend& backend, const In<Rank>& there) {
        if (there.element() == Element::f32) return backend.download(as_floats(there));
        const int64_t count = element_count(there.shape());
        const int64_t bytes = count * element_bytes(there.element());
        const std::shared_ptr<void> stored = allocate_host(bytes, Fill::nothing);
        backend.copy(stored.get(), Space::host, there.data(), there.space(), bytes);
        Tensor<float, Rank> values(there.shape(), Fill::nothing);
        decode(stored.get(), there.element(), {values.data(), static_cast<size_t>(count)});
        return values;
    }

    std::shared_ptr<State> state_;
};

}  // namespace msa
