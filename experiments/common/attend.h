// SPDX-License-Identifier: MIT
// Calls of a backend from host tensors, with results on the host, wherever the backend works.
#pragma once

#include "core/backend.h"

namespace msa::experiments {

/// An operand in the backend's space: the host view itself, or an uploaded copy.
template <int Rank>
class Operand {
public:
    Operand(Backend& backend, View<const float, Rank> host) : view_(host) {
        if (backend.space() == Space::host) return;
        copy_ = backend.upload(host);
        view_ = copy_.view();
    }
    operator In<Rank>() const { return view_; }

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

/// Attention over the blocks `ids` [Nq, Hkv, k] in the backend's space; dense without ids.
Attention attend(Backend&, const Problem&, const AttentionInput&, View<const int32_t, 3> ids);

/// Attention over the blocks `ids` on the host.
Attention attend_selected(Backend&, const Problem&, const AttentionInput&,
                          View<const int32_t, 3> ids);

/// ids [Nq, Hkv, k] on the host from scores on the host.
Tensor<int32_t, 3> pick(Backend&, const Problem&, const SelectionRule&,
                        View<const float, 3> scores);

}  // namespace msa::experiments
