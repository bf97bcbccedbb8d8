// SPDX-License-Identifier: MIT
// A cuda backend's device and stream, for other code's kernels that run in order with its calls.
#pragma once

#include <memory>

#include "gpu/runtime.h"

namespace msa::cuda {

struct SharedStream {
    Device device;
    std::shared_ptr<Stream> stream;
};

/// Makes the backend expect kernels of others before its own on the stream. InputError unless it
/// is a cuda backend.
SharedStream share_stream(Backend&);

}  // namespace msa::cuda
