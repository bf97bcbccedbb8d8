// SPDX-License-Identifier: MIT
// The host side of the tuned kernels, one file per operation. Suffixes: sm90 for Hopper, sm80 for
// kernels with the instructions of compute capability 8.0, which run on any later device, and tuned
// for functions that choose between the two by device.
//
// takes_<kernel>() alone decides whether a kernel can run a call. Its reasons appear in supports()
// and answered_by(). `aligned`: operands and outputs are aligned to 16 bytes, as the TMA unit
// needs. <kernel>() plans, allocates its workspace and launches; it may be called only if
// takes_<kernel>() accepts the call.
#pragma once

#include <string>

#include "core/backend.h"
#include "gpu/runtime.h"

namespace msa::cuda {

struct CandidateExchange;  // gpu/kernels/rank_exchange.h
struct RankExchange;

Support takes_select_blocks_tuned(const SelectBlocksRequest&);
void select_blocks_tuned(const Call&, const SelectionRule&, View<const float, 3> scores,
                         View<int32_t, 3> ids);

Support takes_index_select_sm90(const Device&, const Problem&, const IndexSelectRequest&,
                                bool aligned);
void index_select_sm90(const Call&, const SelectionRule&, const IndexInput&, View<int32_t, 3> ids);
Support takes_index_select_sm80(const Device&, const Problem&, const IndexSelectRequest&,
                                bool aligned);
void index_select_sm80(const Call&, const SelectionRule&, const IndexInput&, View<int32_t, 3> ids);
/// Of the two the one for the device, on these operands.
Support takes_index_select_tuned(const Device&, const Problem&, const SelectionRule&,
                                 const IndexInput&);
void index_select_tuned(const Call&, const SelectionRule&, const IndexInput&, View<int32_t, 3> ids);
/// With an exchange, the call is one rank's part of a decode step (gpu/parallel).
void index_select_of_rank_sm90(const Call&, const SelectionRule&, const IndexInput&,
                               View<int32_t, 3> ids, const CandidateExchange*);

/// Every order but q_outer.
Support takes_sparse_attention_tuned(const Device&, const Problem&, const SparseAttentionRequest&,
                                     bool aligned = true);
void sparse_attention_tuned(const Call&, const AttentionInput&, View<const int32_t, 3> ids,
                            const AttentionOutput&, LoopOrder, const RankExchange* = nullptr);

Support takes_sparse_attention_grad_tuned(const Device&, const Problem&,
                                          const SparseAttentionGradRequest&, bool aligned = true);
/// The call's problem is grad_problem(asked): the asked one, or that in blocks of half the size.
/// `ids` are of the asked one.
Problem grad_problem(const Problem& asked);
void sparse_attention_grad_tuned(const Call&, const Problem& asked, const AttentionInput&,
                                 View<const int32_t, 3> ids, const AttentionSaved&,
                                 const AttentionGradient&);

/// `max_logit`: whether it is requested. `sinks`: whether there are any.
Support takes_block_mass_tuned(const Device&, const Problem&, const BlockMassRequest&,
                               bool max_logit, bool aligned, bool sinks = false);
void block_mass_tuned(const Call&, const BlockMassInput&, const BlockMassOutput&);

/// On tensor cores (mma.sync) of any device that the backend supports.
Support takes_index_lse_mma(const Problem&, const IndexInput&);
/// Takes only what index_lse_mma takes. `top_k`: k of the ids, or 0 for the full support.
Support takes_index_lse_sm90(const Device&, const Problem&, const IndexInput&, int64_t top_k);
/// By the kernel that takes it; does nothing if lse is absent.
void index_lse(const Call&, const IndexInput&, View<const int32_t, 3> ids, View<float, 2> lse);
/// Needs main_lse and a request for gradients.
Support takes_index_kl_sm90(const Device&, const Problem&, const IndexKlInput&,
                            const IndexKlOutput&);
/// Runs index_kl_sm90, else index_kl_mma (which also takes blocks of 16 and 32 keys), else
/// index_kl_any. Returns the kernel's name and why the earlier ones did not take the call.
std::string index_kl(const Call&, const IndexKlInput&, const IndexKlOutput&);

template <typename... Views>
bool are_aligned(const Views&... views) {
    return ((reinterpret_cast<uintptr_t>(views.data()) % 16 == 0) && ...);
}

}  // namespace msa::cuda
