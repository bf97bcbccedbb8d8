// SPDX-License-Identifier: MIT
// Operands of a gate for the tests of all selectors together.
#pragma once

#include <algorithm>
#include <span>

#include "core/problem.h"
#include "core/select/learned_operands.h"
#include "tests/support/random.h"

namespace msa::test {

/// Random gate_q and gate_k of 16 channels. Refers to the problem.
inline ReadLearned random_gate(const Problem& p) {
    return [&p](LearnedOperand operand, std::span<const int64_t> tokens) {
        if (operand == LearnedOperand::gate_k)
            return normal<3>({block_starts(p).back(), p.kv_heads, 16}, 91);
        const Tensor<float, 3> all = normal<3>({p.keys(), p.kv_heads, 16}, 92);
        Tensor<float, 3> rows({std::ssize(tokens), p.kv_heads, 16});
        for (int64_t n = 0; n < rows.extent(0); ++n)
            std::copy_n(all.view()[tokens[static_cast<size_t>(n)]].data(), p.kv_heads * 16,
                        rows.view()[n].data());
        return rows;
    };
}

}  // namespace msa::test
