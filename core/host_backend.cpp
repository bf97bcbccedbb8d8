// SPDX-License-Identifier: MIT
#include "core/host_backend.h"

#include <cstring>

#include "core/error.h"

namespace msa {

void HostBackend::copy(void* to, Space to_space, const void* from, Space from_space,
                       int64_t bytes) {
    require(to_space == Space::host && from_space == Space::host, "backend ", name(),
            " copies host memory only");
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace msa
