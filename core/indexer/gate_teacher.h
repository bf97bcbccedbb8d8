// SPDX-License-Identifier: MIT
// What the gate of SeerAttention-R (gate_kl.h) is made of and taught by: pooled keys of blocks, and
// the Main Branch's probabilities, pooled over the block's tokens and the group's heads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/index_operands.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

/// Poolings of a block's keys: the largest, the least and the mean of each channel.
inline constexpr int64_t kGatePools = 3;

/// [ceil(n / block_size), Hkv * 3 * dh]: of consecutive keys [n, Hkv, dh], of which the first
/// begins a block, group by group the largest, the least and the mean of each channel over the
/// block. The last block may be in part.
Tensor<float, 2> pool_keys(View<const float, 3> k, int64_t block_size);

/// Positions of the first tokens of the blocks of all sequences, in order.
std::vector<int64_t> block_positions(const Problem&);

/// The block of a query that sees `visible` keys; -1 where it sees none. The gate judges those
/// before it.
constexpr int64_t own_block(int64_t visible, int64_t block_size) {
    return visible_blocks(visible, block_size) - 1;
}

/// The Main Branch, on the host.
struct GateTeacherInput {
    View<const float, 3> q, k;        // [Nq, Hq, dh], [Nk, Hkv, dh], as attention multiplies them
    View<const float, 1> sinks = {};  // [Hq]; absent: none
    Teacher teacher = Teacher::max;  // max: largest of tokens and heads; mean: sum over the tokens,
                                     // mean over the heads, as block_mass has it
};

/// a [Nq, Hkv, B]: pooled probabilities of the blocks before the query's own, 0 elsewhere.
/// Probabilities are those of dense attention with the problem's window and soft cap. In float;
/// results do not depend on `threads` (threads_or_all).
void gate_teacher(const Problem&, const GateTeacherInput&, View<float, 3> to, int threads = 0);

namespace reference {
/// The same in plain loops with double sums.
void gate_teacher(const Problem&, const GateTeacherInput&, View<float, 3> to);
}  // namespace reference

}  // namespace msa
