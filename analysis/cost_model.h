// SPDX-License-Identifier: MIT
// FLOPs (a multiply-add is 2) and bytes of a given problem. See also stage_cost.h (from sizes) and
// selection_cost.h (from measured selections).
#pragma once

#include <cstdint>

#include "core/problem.h"
#include "core/tensor.h"

namespace msa::analysis {

/// (query, visible key) pairs of the problem: N (N + 1) / 2 for a square causal sequence. The
/// paper's N^2 / 2 (sec:msa-flops) is its limit.
double causal_pairs(const Problem&);

/// The pairs that the Main Branch attends to: those within its window, if it has one.
double attended_pairs(const Problem&);

/// (query, attended selected key) pairs summed over groups, for ids [Nq, Hkv, k].
double selected_pairs(const Problem&, View<const int32_t, 3> ids);

/// (query, attended key) pairs of a group if every query selects its own block and k - 1 others, or
/// all that it sees. This holds whichever blocks MSA selects.
double kept_pairs(const Problem&, int64_t top_k);

/// Q K^T and P V of `pairs` (query, key) pairs, all heads: 4 Hq dh pairs.
double attention_flops(const Problem&, double pairs);
/// Q K^T and P V over all attended keys: 4 Hq dh pairs (F_GQA of sec:msa-flops).
double dense_attention_flops(const Problem&);
/// Q K^T alone, as block_mass needs it: 2 Hq dh pairs.
double block_mass_flops(const Problem&);
/// The Index Branch: 2 Hkv didx pairs (the first term of F_MSA of sec:msa-flops).
double index_scores_flops(const Problem&);
/// The Main Branch over the selected keys: 4 G dh selected_pairs (at most the second term of
/// F_MSA, 4 Hq dh N k Bk).
double sparse_attention_flops(const Problem&, View<const int32_t, 3> ids);
/// Gradients have five products for the forward pass's two, so 2.5 times its FLOPs; recomputation
/// is not counted.
double dense_attention_grad_flops(const Problem&);
double sparse_attention_grad_flops(const Problem&, View<const int32_t, 3> ids);
/// The two index gradients over `pairs` (query, key, group) triples: 4 didx pairs.
double index_gradient_flops(const Problem&, double pairs);
/// KL loss with gradient over `pairs` (query, key, group) triples of its support: main and index
/// logits, and the two index gradients.
double index_kl_flops(const Problem&, double pairs);

// The least bytes across the memory bus: operands (of the given element) once, results once.
// Attention's out has its operands' type; scores, mass and lse are 4-byte floats, ids 4-byte
// integers.

double select_blocks_bytes(const Problem&, int64_t top_k);
double index_scores_bytes(const Problem&, Element);
double index_select_bytes(const Problem&, Element, int64_t top_k);
/// k and v of the tokens that any query of the group selected, each once.
double sparse_attention_bytes(const Problem&, View<const int32_t, 3> ids, Element);
/// Operands of both branches once, the loss (8 bytes a row), the gradients (4 bytes).
double index_kl_bytes(const Problem&, Element);
double dense_attention_bytes(const Problem&, Element);
/// The forward pass's bytes (out and lse are read), plus d_out, d_q, and d_k and d_v of all tokens.
double sparse_attention_grad_bytes(const Problem&, View<const int32_t, 3> ids, Element);
double dense_attention_grad_bytes(const Problem&, Element);
double block_mass_bytes(const Problem&, Element);

}  // namespace msa::analysis
