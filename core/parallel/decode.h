// SPDX-License-Identifier: MIT
// One layer's decode step over several ranks: keys are divided, top-k candidates exchanged, partial
// outputs merged.
#pragma once

#include <span>
#include <vector>

#include "core/backend.h"
#include "core/parallel/group.h"
#include "core/parallel/plan.h"

namespace msa::parallel {

/// A block that a rank proposes, numbered in the whole sequence.
struct Candidate {
    float score = 0;
    int32_t block = kNoBlock;
};

/// [Nq, Hkv, k] the rank's best blocks, best first, ties to the lower number, padded with kNoBlock.
/// scores [Nq, Hkv, blocks of the part], in host memory. Leaves out the blocks that the rule forces
/// in the whole sequence.
std::vector<Candidate> best_candidates(const SplitKeys&, int rank, const SelectionRule&,
                                       View<const float, 3> scores);

/// ids [Nq, Hkv, k] of the whole sequence from the candidates of all ranks [P, Nq, Hkv, k]: the ids
/// that select_blocks would give on all scores, since a rank's list holds every block of its own
/// that can be among the k best.
Tensor<int32_t, 3> pick_blocks(const SplitKeys&, const SelectionRule&,
                               std::span<const Candidate> of_all);

/// The ids [Nq, Hkv, k] that lie in the rank's part, numbered from its start.
Tensor<int32_t, 3> own_blocks(const SplitKeys&, int rank, View<const int32_t, 3> ids);

/// Attention over all keys from the ranks' partial results, [P, Nq, Hq, dh] and [P, Nq, Hq]:
///   lse = ln sum_r exp(lse_r),   out = sum_r exp(lse_r - lse) out_r
/// in double, in the order of the ranks. All lse -inf: out 0, lse -inf. NaN stays NaN.
void merge_parts(int ranks, std::span<const float> outs, std::span<const float> lses,
                 View<float, 3> out, View<float, 2> lse);

/// Operands of one rank, in its backend's memory. All ranks have the same queries.
struct DecodeInput {
    In<3> index_q;                    // [Nq, Hkv, didx]
    In<2> index_k;                    // [keys of the part, didx]
    In<3> q;                          // [Nq, Hq, dh]
    In<3> k, v;                       // [keys of the part, Hkv, dh]
    View<const float, 1> sinks = {};  // as in AttentionInput; counted once, by rank 0
    OperandScales scales = {};        // of e4m3 q, k and v; a block is one of the part
};

/// On the host.
struct DecodeOutput {
    Tensor<int32_t, 3> ids;  // [Nq, Hkv, k] of the whole sequence
    Tensor<float, 3> out;    // [Nq, Hq, dh]
    Tensor<float, 2> lse;    // [Nq, Hq]
};

/// Collective, on any backend. Every rank scores its own blocks, all agree on the k best, and each
/// attends to its own among them. All ranks get the same bits. ids equal those of index_select on
/// one rank if the backend gives a block the same score in a part as in the whole. out and lse
/// differ from one rank's by the rounding of another order of sums. Scores, candidates and partial
/// outputs pass through the host.
DecodeOutput decode(const Group&, Backend&, const SplitKeys&, const SelectionRule&,
                    const DecodeInput&);

}  // namespace msa::parallel
