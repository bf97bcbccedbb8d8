// SPDX-License-Identifier: MIT
// The KL loss of DSA's lightning indexer and its gradient. The indexer of DeepSeek-V3.2-Exp
// (inference/model.py, class Indexer) scores key j for query i by
//   I_ij = (H didx)^(-1/2) sum_h w_ih max(0, index_q_ih . index_k_j),
// with H heads of its own and a learned weight w_ih for each; one score serves all groups. With p_r
// the teacher of group r and t the softmax of I on the support, as in index_kl (core/backend.h,
// eq:msa-kl), a row's loss is
//   KL_ir = sum_j p_rj (ln p_rj - ln t_j)    and    d mean_r KL_ir / dI_ij = t_j - mean_r p_rj.
// On the full support this gradient equals that of DeepSeek's loss, which compares t with the sum
// of all heads. Here each group is compared on its own, so the losses of both indexers are
// comparable.
#pragma once

#include <cstdint>

#include "core/index_operands.h"
#include "core/problem.h"
#include "core/tensor.h"

namespace msa {

/// The indexer's operands (core/indexer/index_branch.h), on the host.
struct LightningInput {
    View<const float, 3> index_q;  // [Nq, H, didx]
    View<const float, 2> index_k;  // [Nk, didx]
    View<const float, 2> weights;  // [Nq, H] w

    int64_t heads() const { return index_q.extent(1); }
    /// (H didx)^(-1/2), the factor on the weighted sum.
    double scale() const;
};

/// What is compared, on the host.
struct LightningKlInput {
    LightningInput index;
    View<const float, 3> q, k;   // the teacher's, [Nq, Hq, dh] and [Nk, Hkv, dh]
    View<const int32_t, 3> ids;  // [Nq, Hkv, k] one choice for all groups: group 0 is read; absent:
                                 // the full support
    Teacher teacher = Teacher::mean;
    View<const float, 1> sinks = {};  // the teacher's, [Hq]; absent: none
};

/// Any may be absent, the gradients only together. They are those of the mean of kl over rows and
/// groups.
struct LightningKlOutput {
    View<double, 2> kl = {};  // [Nq, Hkv]; where the teacher sees no key of the support: 0, and
                              // no gradient
    View<double, 1> entropy = {};   // [Nq] of t, in nats
    View<float, 3> d_index_q = {};  // [Nq, H, didx]
    View<float, 2> d_index_k = {};  // [Nk, didx]
    View<float, 2> d_weights = {};  // [Nq, H]
};

/// In float, streamed over blocks of keys. Results do not depend on `threads` (threads_or_all).
void lightning_kl(const Problem&, const LightningKlInput&, const LightningKlOutput&,
                  int threads = 0);

namespace reference {
/// The same in plain loops with double sums.
void lightning_kl(const Problem&, const LightningKlInput&, const LightningKlOutput&);
}  // namespace reference

}  // namespace msa
