// SPDX-License-Identifier: MIT
// The reference implementation: scalar loops with double sums, one file per operation, written from
// the paper's equations. Inputs and outputs are float. It is not meant to be fast.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "core/key_tokens.h"
#include "core/registry.h"

namespace msa {

std::unique_ptr<Backend> make_reference_backend(const BackendOptions&);

namespace reference {

/// Operands of the Main Branch. v may be absent if unused, sinks if there are none.
struct MainBranch {
    View<const float, 3> q;
    KeyTokens<float> k, v;
    View<const float, 1> sinks = {};
};

void dense_attention(const Problem&, const MainBranch&, View<float, 3> out, View<float, 2> lse);
void index_scores(const Problem&, View<const float, 3> index_q, const KeyTokens<float>& index_k,
                  View<float, 3> scores);
/// The same for int8 operands, given as floats that are not yet multiplied by their scales.
void index_scores(const Problem&, View<const float, 3> index_q, const KeyTokens<float>& index_k,
                  const OperandScales&, View<float, 3> scores);
void select_blocks(const Problem&, const SelectionRule&, View<const float, 3> scores,
                   View<int32_t, 3> ids);
void sparse_attention(const Problem&, const MainBranch&, View<const int32_t, 3> ids,
                      View<float, 3> out, View<float, 2> lse);
void dense_attention_grad(const Problem&, const AttentionInput&, const AttentionSaved&,
                          const AttentionGradient&);
void sparse_attention_grad(const Problem&, const AttentionInput&, View<const int32_t, 3> ids,
                           const AttentionSaved&, const AttentionGradient&);
void block_mass(const Problem&, const MainBranch&, const BlockMassOutput&);
void index_lse(const Problem&, View<const float, 3> index_q, const KeyTokens<float>& index_k,
               View<const int32_t, 3> ids, View<float, 2> lse);
void index_kl(const Problem&, const IndexKlInput&, const IndexKlOutput&);

/// The teacher of index_kl: p of query i and group r on `tokens`, of which the Main Branch sees the
/// last `shown`. A head's NaN propagates. Each head is weighted by 1 - its sink's probability.
/// Weights are scaled so that the largest is 1: nothing underflows, and the teacher is divided by
/// its sum anyway.
std::vector<double> teacher_probabilities(const Problem&, const MainBranch&, int64_t i, int64_t r,
                                          const std::vector<int64_t>& tokens, size_t shown,
                                          Teacher);

/// The sink of a head without one: its weight is 0.
inline constexpr double kNoSink = -std::numeric_limits<double>::infinity();

/// Dot product in double.
double dot(View<const float, 1> a, View<const float, 1> b);

/// Packed indices of the visible tokens of the blocks `ids`, ascending (I_tok of eq:msa-pp).
std::vector<int64_t> support_tokens(KeyRange visible, int64_t block_size,
                                    std::span<const int32_t> ids);
/// Packed indices of all visible tokens.
std::vector<int64_t> all_tokens(KeyRange visible);
/// Those of `tokens` that the Main Branch attends to.
std::vector<int64_t> in_window(const Problem&, KeyRange visible, std::vector<int64_t> tokens);

/// Softmax over the logits and the sink, in place; the sink's own probability is not stored.
/// Returns the natural log of the sum of exponentials, -inf if there are no logits and no sink.
double softmax(std::vector<double>& logits, double sink = kNoSink);
/// Of shares that add up to 1, in nats.
double entropy_of(const std::vector<double>& shares);

/// The sink of head h, kNoSink without sinks.
double sink_of(const MainBranch&, int64_t h);

/// Attention of head h of query i over the packed keys `tokens` and its sink; out is 0 without
/// tokens. Returns the lse.
double attend(const Problem&, const MainBranch&, int64_t i, int64_t h,
              const std::vector<int64_t>& tokens, View<float, 1> out);

}  // namespace reference
}  // namespace msa
