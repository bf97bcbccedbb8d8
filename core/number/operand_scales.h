// SPDX-License-Identifier: MIT
// Scales of sparse_attention's e4m3 operands, and quantisation to them. Shape letters:
// core/problem.h; other number formats: core/number/quantize.h.
#pragma once

#include <cstdint>
#include <vector>

#include "core/number/e4m3.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

/// An operand's value is its e4m3 value times a scale; absent scales are 1. A scale of q multiplies
/// a row's softmax scale, so one per row costs no more than one per tile. A scale of k or v belongs
/// to a block, the keys that a kernel takes at once.
struct OperandScales {
    View<const float, 2> q;     // [1, 1], or [Nq, Hq]
    View<const float, 2> k, v;  // [1, 1], or [blocks of all sequences, Hkv], see block_starts()

    explicit operator bool() const { return q || k || v; }
};

/// The range of a scale. In float, kernels multiply two scales with a product of two rows and
/// divide by the third.
inline constexpr float kLeastScale = 0x1p-40F, kMostScale = 0x1p40F;

/// Throws InputError if scales are given for operands other than e4m3, have another shape, lie in
/// another space or, on the host, are outside [kLeastScale, kMostScale].
void check_scales(const Problem&, const OperandScales&, Element operands, Space space);

/// Scale (i, j); 1 where absent.
inline float scale_at(View<const float, 2> scales, int64_t i, int64_t j) {
    return !scales ? 1.0F : scales.size() == 1 ? *scales.data() : scales(i, j);
}

/// [Nk]: the number of each key's block, counted over all sequences.
std::vector<int64_t> key_blocks(const Problem&);

/// An operand with its scales.
struct ScaledOperand {
    Tensor<e4m3, 3> values;
    Tensor<float, 2> scales;
};

/// What shares a scale of an operand: all its values; a row, that is a token and head (q); or a
/// block of keys and a head (k, v).
enum class OperandScale : uint8_t { tensor, row, block };

/// Quantises `operand` [tokens, heads, channels]. A scale is the largest finite magnitude that
/// shares it, divided by that of e4m3, within the range above; values are divided by it and rounded
/// to the nearest e4m3. With OperandScale::block the tokens are the problem's keys. NaN stays NaN.
ScaledOperand store_scaled(const Problem&, View<const float, 3> operand, OperandScale);

/// The floats nearest to values times scales, for q (`keys` false) or for k or v. `threads`: see
/// core/threads.h.
Tensor<float, 3> read_scaled(const Problem&, View<const e4m3, 3> values,
                             View<const float, 2> scales, bool keys, int threads = 0);

}  // namespace msa
