// SPDX-License-Identifier: MIT
// Scales of e4m3 operands of sparse_attention, and how operands get them. Shape letters:
// core/problem.h; the formats that a study compares: core/number/quantize.h.
#pragma once

#include <cstdint>
#include <vector>

#include "core/number/e4m3.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

/// A value that an operand stands for is its e4m3 value times a scale; absent: times 1. A scale of
/// q is a factor on the softmax scale of a row, so one for each row costs no more than one for a
/// tile of rows. A scale of k or v belongs to the keys that a kernel takes at once, a block.
struct OperandScales {
    View<const float, 2> q;     // [1, 1], or [Nq, Hq]
    View<const float, 2> k, v;  // [1, 1], or [blocks of all sequences, Hkv], see block_starts()

    explicit operator bool() const { return q || k || v; }
};

/// What a scale may be: kernels multiply two of them with a product of two rows, and divide by the
/// third, in float.
inline constexpr float kLeastScale = 0x1p-40F, kMostScale = 0x1p40F;

/// Throws InputError where scales are there without e4m3 operands, have another shape, lie in
/// another space, or, on the host, are not from kLeastScale to kMostScale.
void check_scales(const Problem&, const OperandScales&, Element operands, Space space);

/// Scale (i, j); 1 where absent.
inline float scale_at(View<const float, 2> scales, int64_t i, int64_t j) {
    return !scales ? 1.0F : scales.size() == 1 ? *scales.data() : scales(i, j);
}

/// [Nk]: the number of each key's block when the blocks of all sequences are numbered through.
std::vector<int64_t> key_blocks(const Problem&);

/// An operand with its scales.
struct ScaledOperand {
    Tensor<e4m3, 3> values;
    Tensor<float, 2> scales;
};

/// What shares a scale of an operand: all its values; a row, that is a token and head (q); or a
/// block of keys and a head (k, v).
enum class OperandScale : uint8_t { tensor, row, block };

/// The nearest e4m3 values of `operand` [tokens, heads, channels] over their scale: the largest
/// finite magnitude that shares it, over that of e4m3, within the range that a scale may be of. The
/// tokens are the problem's keys where blocks share scales. NaN stays NaN.
ScaledOperand store_scaled(const Problem&, View<const float, 3> operand, OperandScale);

/// The floats nearest to values times scales, of q (`keys` false) or of k or v. `threads`: see
/// core/threads.h.
Tensor<float, 3> read_scaled(const Problem&, View<const e4m3, 3> values,
                             View<const float, 2> scales, bool keys, int threads = 0);

}  // namespace msa
