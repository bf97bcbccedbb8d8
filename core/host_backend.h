// SPDX-License-Identifier: MIT
// The common part of the backends that work in host memory.
#pragma once

#include "core/backend.h"

namespace msa {

class HostBackend : public Backend {
public:
    Space space() const override { return Space::host; }
    std::shared_ptr<void> allocate(int64_t bytes) override { return allocate_host(bytes); }
    void copy(void* to, Space to_space, const void* from, Space from_space, int64_t bytes) override;
    void finish() override {}

protected:
    /// Operands are f32; those of sparse_attention may be e4m3, whose results are f32 too.
    static Support takes_elements(const Request&);
};

/// The operands of sparse_attention as floats: floats in place, or e4m3 values times their scales.
class FloatOperands {
public:
    FloatOperands(const Problem&, const AttentionInput&, int threads);
    /// Valid while this object and the input live.
    const AttentionInput& view() const { return floats_; }

private:
    Tensor<float, 3> q_, k_, v_;
    AttentionInput floats_;
};

}  // namespace msa
