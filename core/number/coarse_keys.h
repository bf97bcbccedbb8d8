// SPDX-License-Identifier: MIT
// An int8 copy of index_k, by which index_select finds the ids of wider operands with less work.
// The ids are those of the operands, bit for bit. Shape letters: core/problem.h.
//
// A row q and the keys k of a block, rounded to int8 times a scale, are q' and k'. By Cauchy and
// Schwarz
//     |q.k - q'.k'| = |(q - q').k + q'.(k - k')| <= |q - q'| |k| + |q'| |k - k'|.
// The largest product of a block thus differs from that of the copies by at most this sum with the
// block's largest |k| and |k - k'|. Arithmetic adds rounding_share() |q| |k|:
//     the score of the operands   a product of q and k, its sum in float in any order, where a step
//                                 of the tensor cores truncates, and the index scale:
//                                 (5/4 didx + 10) 2^-24
//     the score of the copies     exact in whole numbers; four roundings of scales, as |q'| |k'| is
//                                 at most 4 |q| |k|: 16 2^-24
//     the bounds                  score + error, then - 2 error, at most 7 |q| |k|: 21 2^-24
// 4 (didx + 16) 2^-24 is more than their sum. Norms are rounded up by kNormShare, which also covers
// the roundings of the error itself.
//
// With error(row, block) above, a block is out if its upper bound is below the k-th best lower
// bound of the row: k blocks then have better scores. It is surely in if its lower bound is above
// the (k+1)-th best upper bound. Scores of the blocks between are computed as without a copy, so
// equal scores go to the lower id as ever.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "core/keys.h"
#include "core/number/int8.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

/// The copy. index_k itself stays an operand.
struct CoarseKeys {
    In<2> keys;                   // [Nk, didx] int8, packed
    View<const float, 2> blocks;  // [blocks of all sequences, 3], of each a CoarseBlock

    explicit operator bool() const { return static_cast<bool>(keys); }
};

struct CoarseBlock {
    float scale;  // of its int8 values
    float norm;   // at least the largest |k|
    float error;  // at least the largest |k - k'|
};

/// What a row needs: the score of the copies is scaled_score(scale, block's scale, product).
struct CoarseRow {
    float scale;
    float of_norm, of_error;  // of a block, in the error of its score

    /// The largest difference between the scores of the copies and of the operands; +inf where one
    /// of them is not finite.
    constexpr float error(float block_norm, float block_error) const {
        return of_norm * block_norm + of_error * block_error;
    }
};

inline constexpr float kNormShare = 0x1p-12F;
/// Norms from the second on count as infinite, so that no product overflows. Those below the first
/// are raised to it, so that no error underflows.
inline constexpr float kLeastNorm = 0x1p-40F, kMostNorm = 0x1p50F;
/// Index scales within these bounds neither overflow nor underflow a bound.
inline constexpr float kLeastCoarseScale = 0x1p-20F, kMostCoarseScale = 0x1p20F;

constexpr bool takes_coarse(double index_scale) {
    return index_scale >= kLeastCoarseScale && index_scale <= kMostCoarseScale;
}

/// A norm rounded up; of NaN: +inf.
constexpr float norm_bound(float norm) {
    const float up = norm * (1 + kNormShare);
    if (up < kLeastNorm) return kLeastNorm;
    return up < kMostNorm ? up : std::numeric_limits<float>::infinity();
}
constexpr float rounding_share(int64_t index_dim) {
    return static_cast<float>(index_dim + 16) * 0x1p-22F;
}

/// Of a row with scale `scale`; the norms of q, q' and q - q' may have been rounded.
constexpr CoarseRow coarse_row(float index_scale, int64_t index_dim, float scale, float norm,
                               float read_norm, float error) {
    const float share = norm_bound(error) + rounding_share(index_dim) * norm_bound(norm);
    return {index_scale * scale, index_scale * share, index_scale * norm_bound(read_norm)};
}

/// Writes the int8 values of a row.
CoarseRow coarse_row(const Problem&, std::span<const float> q, Int8* to);

/// A copy on the host.
struct StoredCoarseKeys {
    Tensor<Int8, 2> keys;
    Tensor<float, 2> blocks;
    CoarseKeys view() const { return {keys, blocks}; }
};
StoredCoarseKeys store_coarse(const Problem&, View<const float, 2> index_k);

/// Of CoarseKeys::blocks.
constexpr CoarseBlock coarse_block(const float* blocks, int64_t block) {
    return {blocks[3 * block], blocks[3 * block + 1], blocks[3 * block + 2]};
}

/// Throws InputError if a copy has another shape, element or space than index_k needs, or, where
/// both are floats on the host, is not one of index_k.
void check_coarse_keys(const Problem&, const CoarseKeys&, const Keys<2>& index_k);

}  // namespace msa
