// SPDX-License-Identifier: MIT
// The common part of the backends that work in host memory.
#pragma once

#include "core/backend.h"
#include "core/key_tokens.h"

namespace msa {

class HostBackend : public Backend {
public:
    Space space() const override { return Space::host; }
    std::shared_ptr<void> allocate(int64_t bytes) override { return allocate_host(bytes); }
    void copy(void* to, Space to_space, const void* from, Space from_space, int64_t bytes) override;
    void finish() override {}

protected:
    void do_append(const Problem&, const In<3>& rows, const Keys<3>& to) override;
    void check_saved(const Problem&, const AttentionInput&, View<const int32_t, 3> ids,
                     const AttentionSaved&) const override;
    void check_index_lse(const Problem&, const IndexKlInput&) const override;
    /// Operands are f32; those of sparse_attention may be e4m3, whose results are f32 too,
    /// and those of index_scores and index_select int8.
    static Support takes_elements(const Request&);
};

/// The operands of sparse_attention as floats: floats in place, or e4m3 values times their scales,
/// packed.
class FloatOperands {
public:
    FloatOperands(const Problem&, const AttentionInput&, int threads);
    /// Valid while this object and the input live.
    const AttentionInput& view() const { return floats_; }

private:
    Tensor<float, 3> q_, k_, v_;
    AttentionInput floats_;
};

/// The operands of index_scores and index_select as floats: floats in place, or int8 values
/// converted to float and packed, not yet multiplied by their scales.
class FloatIndexInput {
public:
    FloatIndexInput(const Problem&, const IndexInput&);
    View<const float, 3> q() const { return floats_.index_q.as<const float>(); }
    const KeyTokens<float>& k() const { return rows_; }
    const OperandScales& scales() const { return floats_.scales; }

private:
    Tensor<float, 3> q_;
    Tensor<float, 2> k_, k_scales_;
    IndexInput floats_;
    KeyTokens<float> rows_;
};

}  // namespace msa
