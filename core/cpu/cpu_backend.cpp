// SPDX-License-Identifier: MIT
#include "core/cpu/cpu_backend.h"

#include "core/error.h"

namespace msa {

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions&) {
    throw UnsupportedError("the cpu backend is not written yet");
}

}  // namespace msa
