// SPDX-License-Identifier: MIT
// Scales of 8-bit operands and quantisation to them: e4m3 of sparse_attention, int8 of index_scores
// and index_select. Shape letters: core/problem.h; other number formats: core/number/quantize.h.
//
// Scores of int8 operands are the same on every backend, bit for bit. The dot product of two rows
// is an integer, exact in int32 and in float. A block's score is the largest product of its visible
// keys, scaled once by scaled_score().
#pragma once

#include <cstdint>
#include <vector>

#include "core/keys.h"
#include "core/number/e4m3.h"
#include "core/number/int8.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

/// An operand's value is its stored value times a scale; absent scales are 1. A scale of q
/// multiplies a row's softmax scale, so one per row costs no more than one per tile. A scale of k
/// or v belongs to a block, the keys that a kernel takes at once.
struct OperandScales {
    View<const float, 2> q;  // [1, 1], or [Nq, Hq]; of index_q [Nq, Hkv]
    /// [1, 1], or [blocks of all sequences, Hkv], see block_starts(); of index_k [blocks of all
    /// sequences, 1]. Of keys in pages [pages, Hkv], of index_k [pages, 1], and pages are whole
    /// blocks. The Index Branch has no v.
    View<const float, 2> k, v;

    explicit operator bool() const { return q || k || v; }
};

/// The range of a scale. In float, kernels multiply two scales with a product of two rows and
/// divide by the third.
inline constexpr float kLeastScale = 0x1p-40F, kMostScale = 0x1p40F;

/// Throws InputError if scales are given for operands other than e4m3, have another shape, lie in
/// another space or, on the host, are outside [kLeastScale, kMostScale].
void check_scales(const Problem&, const OperandScales&, Element operands, const Keys<3>&);
/// The same for the Index Branch and int8. A scale may be NaN there.
void check_index_scales(const Problem&, const OperandScales&, Element operands, const Keys<2>&);

/// Scale (i, j); 1 where absent.
inline float scale_at(View<const float, 2> scales, int64_t i, int64_t j) {
    return !scales ? 1.0F : scales.size() == 1 ? *scales.data() : scales(i, j);
}

/// The score of a block. `largest` is the largest product of the row with the block's visible keys,
/// `row` the index scale times the row's scale, `block` the block's scale.
constexpr float scaled_score(float row, float block, float largest) {
    return row * (block * largest);
}
static_assert(kMaxIndexDim * 128 * 128 <= 1 << 24, "sums of products of int8 are exact in float");

/// Turns the largest products of rows with blocks into scores.
class ScoreScales {
public:
    ScoreScales(const Problem&, const OperandScales&);

    /// The scales of one row (query, group).
    struct Row {
        float scale;          // scaled_score's `row`
        const float* blocks;  // scales of its sequence's blocks; null: 1
        int64_t step;         // 0: one scale for all blocks
        float score(int64_t block, float largest) const {
            return scaled_score(scale, blocks == nullptr ? 1 : blocks[block * step], largest);
        }
    };
    Row row(int64_t query, int64_t group) const;

private:
    float scale_;
    OperandScales scales_;
    std::vector<int64_t> first_block_;  // [sequences] counted over all; empty: no scale per block
    std::vector<int64_t> sequence_;     // [Nq]; likewise
};

/// Scales of keys in pages as those of the same keys packed: [pages, heads] becomes [blocks of all
/// sequences, heads].
template <int Rank>
Tensor<float, 2> packed_scales(const Problem&, const Keys<Rank>&, View<const float, 2> scales);
extern template Tensor<float, 2> packed_scales(const Problem&, const Keys<2>&,
                                               View<const float, 2>);
extern template Tensor<float, 2> packed_scales(const Problem&, const Keys<3>&,
                                               View<const float, 2>);

/// [Nk]: the number of each key's block, counted over all sequences.
std::vector<int64_t> key_blocks(const Problem&);

/// An operand with its scales; T is e4m3 or int8.
template <typename T>
struct ScaledOperand {
    Tensor<T, 3> values;
    Tensor<float, 2> scales;
};

/// What shares a scale of an operand: all its values; a row, that is a token and head (q); or a
/// block of keys and a head (k, v).
enum class OperandScale : uint8_t { tensor, row, block };

/// Quantises `operand` [tokens, heads, channels]; index_k is [Nk, 1, didx]. A scale is the largest
/// finite magnitude that shares it, divided by that of T, within the range above; values are
/// divided by it and rounded to the nearest T. With OperandScale::block the tokens are the
/// problem's keys. Infinities become the largest T. NaN stays NaN in e4m3. int8 has no NaN: there
/// the scale becomes NaN, and with it all scores of the row, or of the block for every query that
/// sees a part of it.
template <typename T>
ScaledOperand<T> store_scaled(const Problem&, View<const float, 3> operand, OperandScale);
extern template ScaledOperand<e4m3> store_scaled(const Problem&, View<const float, 3>,
                                                 OperandScale);
extern template ScaledOperand<Int8> store_scaled(const Problem&, View<const float, 3>,
                                                 OperandScale);

/// The floats nearest to values times scales, for q (`keys` false) or for k or v. `threads`: see
/// core/threads.h.
template <typename T>
Tensor<float, 3> read_scaled(const Problem&, View<const T, 3> values, View<const float, 2> scales,
                             bool keys, int threads = 0);
extern template Tensor<float, 3> read_scaled(const Problem&, View<const e4m3, 3>,
                                             View<const float, 2>, bool, int);
extern template Tensor<float, 3> read_scaled(const Problem&, View<const Int8, 3>,
                                             View<const float, 2>, bool, int);

}  // namespace msa
