// SPDX-License-Identifier: MIT
// sparse_attention of e4m3 operands with scales, on any backend that takes them.
#pragma once

#include "core/number/operand_scales.h"
#include "tests/support/runner.h"

namespace msa::test {

struct ScaledOperands {
    ScaledOperand q, k, v;
    /// What they stand for.
    Operands floats(const Problem&) const;
};

/// q with a scale for each row, k and v with one for each block; or, with `tensor`, one each.
ScaledOperands store_scaled(const Problem&, const Operands&, bool tensor);

/// Into poisoned outputs of element `stored`, f32 or bf16.
Attention sparse_attention(Backend&, const Problem&, const ScaledOperands&,
                           View<const int32_t, 3> ids, LoopOrder, Element stored);

}  // namespace msa::test
