// SPDX-License-Identifier: MIT
// Launchers of the kernels, with the names of the operations as in core/cpu. Contracts:
// core/backend.h. Arguments are already checked, memory is on the device, calls are asynchronous.
//   <op>_any   plain and readable, compute capability 8.0 or later, any size that Problem allows
#pragma once

#include <string>

#include "core/backend.h"
#include "gpu/runtime.h"

namespace msa::cuda {

/// The call, whose queries see as many keys as the lengths of these (Keys::seqused_k) say, if there
/// are any.
class CallNow {
public:
    template <int Rank>
    CallNow(const Call& call, const Keys<Rank>& keys) : CallNow(call, keys.seqused_k()) {}
    operator const Call&() const { return call_; }

private:
    CallNow(const Call&, const View<const int32_t, 1>& lengths);
    Tensor<KeyRange, 1> visible_;
    Call call_;
};

/// Backend::append. Returns the kernel's name.
std::string append_rows(const Call&, const In<3>& rows, const Keys<3>& to);

/// With `only_if`, a flag on the device, does nothing if the flag is 0.
void dense_attention_any(const Call&, const AttentionInput&, const AttentionOutput&,
                         const int32_t* only_if = nullptr);

/// delta [Nq, Hq]: <out, d_out> of every row, an input of the gradients. `only_if` as above.
void output_gradient_products(const Call&, const AttentionSaved&, float* delta,
                              const int32_t* only_if = nullptr);
/// d_sinks [Hq], if present: -sum exp(sink - lse) delta over the queries.
void sink_gradient(const Call&, View<const float, 1> sinks, const float* lse, const float* delta,
                   View<float, 1> d_sinks);
/// Only d_q, d_k and d_v. `only_if` as above.
void dense_attention_grad_any(const Call&, const AttentionInput&, const AttentionSaved&,
                              const AttentionGradient&, const float* delta,
                              const int32_t* only_if = nullptr);
void sparse_attention_grad_any(const Call&, const AttentionInput&, View<const int32_t, 3> ids,
                               const AttentionSaved&, const AttentionGradient&, const float* delta);
/// Marks of gradients to compute again; 0: not marked.
struct GradMarks {
    const int32_t* rows;    // [Nq, Hkv], of d_q
    const int32_t* blocks;  // [blocks of all sequences, Hkv], of d_k and d_v
};
void sparse_attention_grad_repair_any(const Call&, const AttentionInput&,
                                      View<const int32_t, 3> ids, const AttentionSaved&,
                                      const AttentionGradient&, const float* delta,
                                      const GradMarks&);

/// `layout` is that of the whole problem, of which the call may have a part of the queries.
void index_scores_any(const Call&, const Layout* layout, const IndexInput&, View<float, 3> scores);
void select_blocks_any(const Call&, const SelectionRule&, View<const float, 3> scores,
                       View<int32_t, 3> ids);
void index_select_any(const Call&, const SelectionRule&, const IndexInput&, View<int32_t, 3> ids);
/// lse [Nq, Hkv] of the index scores on the blocks ids; does nothing if lse is absent.
void index_lse_any(const Call&, const IndexInput&, View<const int32_t, 3> ids, View<float, 2> lse);
void sparse_attention_q_outer_any(const Call&, const AttentionInput&, View<const int32_t, 3> ids,
                                  const AttentionOutput&);
void sparse_attention_kv_outer_any(const Call&, const AttentionInput&, View<const int32_t, 3> ids,
                                   const AttentionOutput&);
/// Computes attention of the marked rows (query, group) again; without ids, over all visible keys.
/// Without v and out, computes only the lse.
void attention_repair_any(const Call&, const AttentionInput&, View<const int32_t, 3> ids,
                          const AttentionOutput&, const int32_t* marked);
/// Adds the sinks to finished rows (AttentionInput::sinks): out [Nq, Hq, dh], which may be absent,
/// and lse [Nq, Hq]. Does nothing if sinks are absent.
void add_sinks_any(const Call&, View<const float, 1> sinks, const Out<3>& out, View<float, 2> lse);
void block_mass_any(const Call&, const BlockMassInput&, const BlockMassOutput&);
/// The lse [Nq, Hq] of index_kl's teacher from sinks and main_lse: the mean over a group's heads of
/// exp(logit - lse) is the teacher. A row that sees no key of its support: -inf.
Tensor<float, 2> teacher_lse_any(const Call&, const IndexKlInput&);
void index_kl_any(const Call&, const IndexKlInput&, const IndexKlOutput&);

}  // namespace msa::cuda
