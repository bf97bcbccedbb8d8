// SPDX-License-Identifier: MIT
// What the backends that work in host memory have in common.
#pragma once

#include "core/backend.h"

namespace msa {

class HostBackend : public Backend {
public:
    Space space() const override { return Space::host; }
    std::shared_ptr<void> allocate(int64_t bytes) override { return allocate_host(bytes); }
    void copy(void* to, Space to_space, const void* from, Space from_space, int64_t bytes) override;
    void finish() override {}
};

}  // namespace msa
