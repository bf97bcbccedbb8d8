// SPDX-License-Identifier: MIT
// The project's own truth: scalar loops with double sums, one file per operation, straight from
// the paper's equations. Inputs and outputs are float; nothing here is meant to be fast.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "core/registry.h"

namespace msa {

std::unique_ptr<Backend> make_reference_backend(const BackendOptions&);

namespace reference {

void dense_attention(const Problem&, View<const float, 3> q, View<const float, 3> k,
                     View<const float, 3> v, View<float, 3> out, View<float, 2> lse);
void index_scores(const Problem&, View<const float, 3> index_q, View<const float, 2> index_k,
                  View<float, 3> scores);
void select_blocks(const Problem&, const SelectionRule&, View<const float, 3> scores,
                   View<int32_t, 3> ids);
void sparse_attention(const Problem&, View<const float, 3> q, View<const float, 3> k,
                      View<const float, 3> v, View<const int32_t, 3> ids, View<float, 3> out,
                      View<float, 2> lse);
void dense_attention_grad(const Problem&, const AttentionInput&, const AttentionSaved&,
                          const AttentionGradient&);
void sparse_attention_grad(const Problem&, const AttentionInput&, View<const int32_t, 3> ids,
                           const AttentionSaved&, const AttentionGradient&);
void block_mass(const Problem&, View<const float, 3> q, View<const float, 3> k,
                const BlockMassOutput&);
void index_kl(const Problem&, View<const float, 3> index_q, View<const float, 2> index_k,
              View<const float, 3> q, View<const float, 3> k, View<const int32_t, 3> ids,
              const IndexKlOutput&, Teacher);

/// Dot product in double.
double dot(View<const float, 1> a, View<const float, 1> b);

/// Packed indices of the visible tokens of the blocks `ids`, ascending (I_tok of eq:msa-pp).
std::vector<int64_t> support_tokens(KeyRange visible, int64_t block_size,
                                    std::span<const int32_t> ids);
/// Packed indices of all visible tokens.
std::vector<int64_t> all_tokens(KeyRange visible);

/// Softmax over the logits, in place; returns the natural log of the sum of exponentials, -inf
/// for no logits.
double softmax(std::vector<double>& logits);

/// One head of one query attends to `tokens` of the packed keys; out 0 for no tokens.
/// Returns the lse.
double attend(double scale, View<const float, 1> q, View<const float, 3> k, View<const float, 3> v,
              int64_t group, const std::vector<int64_t>& tokens, View<float, 1> out);

}  // namespace reference
}  // namespace msa
