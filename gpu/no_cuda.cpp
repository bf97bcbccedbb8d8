// SPDX-License-Identifier: MIT
// Stands for the backend in builds without a CUDA compiler.
#include "gpu/cuda_backend.h"

namespace msa {

void register_cuda_backend() {
    register_backend({"cuda", Support::no("this build has no CUDA (CMake option MSA_CUDA)")},
                     [](const BackendOptions&) { return std::unique_ptr<Backend>(); });
}

std::optional<double> cuda_cold_seconds(Backend&, const std::function<void()>&) { return {}; }

}  // namespace msa
