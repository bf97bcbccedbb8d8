// SPDX-License-Identifier: MIT
// Where a cuda backend works, for kernels of others that take their turn among its calls.
#pragma once

#include <memory>

#include "gpu/runtime.h"

namespace msa::cuda {

struct SharedStream {
    Device device;
    std::shared_ptr<Stream> stream;
};

/// From now on the backend expects others' kernels ahead of its own on the stream. InputError where
/// it is not a cuda backend.
SharedStream share_stream(Backend&);

}  // namespace msa::cuda
