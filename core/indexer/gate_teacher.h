// SPDX-License-Identifier: MIT
// Inputs and teacher of SeerAttention-R's gate (gate_kl.h): pooled keys of blocks, and the Main
// Branch's probabilities pooled over a block's tokens and a group's heads.
#pragma once

#include <cstdint>
#include <vector>

#include "core/index_operands.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

/// Poolings of a block's keys: the largest, the least and the mean of each channel.
inline constexpr int64_t kGatePools = 3;

/// [ceil(n / block_size), Hkv * 3 * dh]: for each block and group the largest, the least and the
/// mean of each channel. The keys [n, Hkv, dh] are consecutive and begin a block; the last block
/// may be partial.
Tensor<float, 2> pool_keys(View<const float, 3> k, int64_t block_size);

/// Positions of the first tokens of the blocks of all sequences, in order.
std::vector<int64_t> block_positions(const Problem&);

/// The block of a query that sees `visible` keys; -1 if it sees none. The gate scores the blocks
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
