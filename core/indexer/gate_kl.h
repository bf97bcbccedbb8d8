// SPDX-License-Identifier: MIT
// The gate of SeerAttention-R (arXiv 2506.08889; microsoft/SeerAttention,
// decode_sparse/attn_gate_training.py): its loss and gradient. Pooled keys and teacher:
// gate_teacher.h. The gate has one query per token and group and one key per block and group,
//   gate_q_ir = RoPE(W_q,r [q_h of the group's heads h], position of i),
//   gate_k_br = RoPE(W_k,r [max, min, mean of k_r over block b], first position of the block),
// with q and k before RoPE (projected by core/indexer/index_branch.h). It scores only the blocks
// before the query's own; with o_i the block of query i,
//   t_ir = softmax over b < o_i of gate_q_ir . gate_k_br / sqrt(dg).
// Its target is the Main Branch's probability P_ihj, pooled over the block's tokens and the group's
// heads to a_irb, and scaled to sum to 1 over the blocks b < o_i of the support: p_ir. Then
//   KL_ir = sum_b p_irb (ln p_irb - ln t_irb)   and   dKL_ir / d(logit of b) = t_irb - p_irb.
// The source pools by the maximum over tokens and heads (Teacher::max) and uses the full support.
#pragma once

#include "core/indexer/gate_teacher.h"

namespace msa {

struct GateKlInput {
    View<const float, 3> gate_q;  // [Nq, Hkv, dg]
    View<const float, 3> gate_k;  // [blocks of all sequences, Hkv, dg]
    View<const float, 3> target;  // [Nq, Hkv, B] of gate_teacher
    View<const int32_t, 3> ids;   // [Nq, Hkv, k] the support; absent: all blocks before the own

    /// dg^(-1/2).
    double scale() const;
};

/// Any may be absent, the gradients only together. They are those of the mean of kl over rows and
/// groups.
struct GateKlOutput {
    View<double, 2> kl = {};              // [Nq, Hkv]; 0, without gradient, where no block of the
                                          // support is before the own or the teacher looks at none
    View<double, 2> entropy = {};         // [Nq, Hkv] of t, in nats; 0 without a block
    View<double, 2> target_entropy = {};  // [Nq, Hkv] of p, likewise
    View<float, 3> d_gate_q = {};         // [Nq, Hkv, dg]
    View<float, 3> d_gate_k = {};         // [blocks, Hkv, dg]
};

/// Logits in float, softmax and sums in double. Results do not depend on `threads`
/// (threads_or_all).
void gate_kl(const Problem&, const GateKlInput&, const GateKlOutput&, int threads = 0);

namespace reference {
/// The same in plain loops with double sums.
void gate_kl(const Problem&, const GateKlInput&, const GateKlOutput&);
}  // namespace reference

}  // namespace msa
