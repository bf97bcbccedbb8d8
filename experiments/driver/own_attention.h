// SPDX-License-Identifier: MIT
// A model's own attention beyond plain causal attention, in a program.
#pragma once

#include <iosfwd>

#include "core/backend.h"
#include "core/io/activations.h"

namespace msa::experiments {

/// The attention that a program computes: plain causal attention, or with the layer's window, soft
/// cap and sinks.
enum class Computed : uint8_t { plain, with_window_cap_and_sinks };

/// Warns on `err` if the model's attention differs from what the program computes.
void warn_of_own_attention(const io::ActivationsReader&, int64_t layer, Computed,
                           std::ostream& err);

/// Sinks in the backend's space; absent stays absent.
class Sinks {
public:
    Sinks(Backend& backend, View<const float, 1> host) {
        if (host) there_ = backend.upload(host);
    }
    View<const float, 1> view() const { return there_.view(); }
    operator View<const float, 1>() const { return view(); }

private:
    Tensor<float, 1> there_;
};

}  // namespace msa::experiments
