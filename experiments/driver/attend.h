// SPDX-License-Identifier: MIT
// Calls of a backend from host tensors, with results on the host, wherever the backend works.
#pragma once

#include <utility>

#include "core/backend.h"
#include "core/half.h"

namespace msa::experiments {

/// An operand in the backend's space: the host view itself, or a copy on the device, there in
/// float or rounded to bf16, as tuned kernels take it.
template <int Rank>
class Operand {
public:
    Operand(Backend& backend, View<const float, Rank> host, Element on_device = Element::f32)
        : view_(host) {
        if (backend.space() == Space::host) return;
        if (on_device == Element::f32) {
            copy_ = backend.upload(host);
            view_ = copy_;
            return;
        }
        MSA_CHECK(on_device == Element::bf16);
        Tensor<bf16, Rank> rounded(host.shape(), Fill::nothing);
#pragma omp parallel for
        for (int64_t i = 0; i < host.size(); ++i) rounded.data()[i] = bf16(host.data()[i]);
        rounded_ = backend.upload(std::as_const(rounded).view());
        view_ = rounded_;
    }
    In<Rank> view() const { return view_; }

private:
    Tensor<float, Rank> copy_;
    Tensor<bf16, Rank> rounded_;
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

struct Attention {
    Tensor<float, 3> out;  // [Nq, Hq, dh]
    Tensor<float, 2> lse;  // [Nq, Hq]
};

/// Attention over the blocks `ids` [Nq, Hkv, k] in the backend's space; dense without ids. The
/// output is rounded to the operands' element on the way.
Attention attend(Backend&, const Problem&, const AttentionInput&, View<const int32_t, 3> ids);

/// Attention over the blocks `ids` on the host.
Attention attend_selected(Backend&, const Problem&, const AttentionInput&,
                          View<const int32_t, 3> ids);

/// P_b, and the largest logits where wanted, in the backend's space.
struct Mass {
    Mass(Backend&, const Problem&, In<3> q, In<3> k, bool logits);
    Tensor<float, 3> mass, max_logit;  // [Nq, Hkv, B]
};

/// ids [Nq, Hkv, k] on the host from float scores [Nq, Hkv, B] in the backend's space.
Tensor<int32_t, 3> pick(Backend&, const Problem&, const SelectionRule&, In<3> scores);

}  // namespace msa::experiments
