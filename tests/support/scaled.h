// SPDX-License-Identifier: MIT
// Operands of 8 bits with scales, on any backend that takes them: e4m3 of sparse_attention, int8 of
// index_scores and index_select.
#pragma once

#include "core/number/operand_scales.h"
#include "tests/support/runner.h"

namespace msa::test {

struct ScaledOperands {
    ScaledOperand<e4m3> q, k, v;
    /// What they stand for.
    Operands floats(const Problem&) const;
};

/// q with a scale for each row, k and v with one for each block; or, with `tensor`, one each.
ScaledOperands store_scaled(const Problem&, const Operands&, bool tensor);

/// Into poisoned outputs of element `stored`, f32 or bf16.
Attention sparse_attention(Backend&, const Problem&, const ScaledOperands&,
                           View<const int32_t, 3> ids, LoopOrder, Element stored);

struct ScaledIndex {
    ScaledOperand<Int8> q, k;  // k: [Nk, 1, didx]
    /// What they stand for, beside the other operands of `o`.
    Operands floats(const Problem&, const Operands& o) const;
};
/// index_q with a scale for each row, index_k with one for each block.
ScaledIndex store_index(const Problem&, const Operands&);

/// Into poisoned outputs.
Tensor<float, 3> index_scores(Backend&, const Problem&, const ScaledIndex&);
Tensor<int32_t, 3> index_select(Backend&, const Problem&, const SelectionRule&, const ScaledIndex&);

}  // namespace msa::test
