// SPDX-License-Identifier: MIT
// Initial weights of an indexer, for whitened hidden states x' (experiments/fit/whitening.h).
//
// normal   random, of variance 1 / d_model.
// from_qk  closed form. The index score is to be the mean of the group's logits, q_r . k_r with q_r
//          the mean of the group's queries before RoPE. Queries and keys are fitted linearly to x';
//          then one index key has to stand for the keys k_r of all groups:
//          - a pair of channels that RoPE rotates at one frequency is a complex number, and what
//            commutes with the rotation is a complex factor: the index key's pair is the first
//            principal component of the groups' pairs of that frequency;
//            Where the index has fewer pairs than the model, choose_pairs says which;
//          - the channels that pass take the leading principal components of the groups' channels
//            that pass.
//          Components are those of the keys weighted by how large the queries are along them, and
//          what the components leave of each k_r is read off them by index_q.
// pca      the same with the components of the keys alone.
//
// For dsa, a head stands for the mean of equally many query heads of one group, and the score is
// the mean over heads of max(0, logit). Every head weight is heads^(-1/2), as closely as a linear
// function of x' can be.
//
// For qsa likewise, without weights: the score is the mean over heads, as each head has its share.
//
// For a gate, which reads q and k before RoPE, nothing is fitted: the score is the product of the
// mean of the group's queries and the mean of the block's keys, rotated to the block's first
// position. If it has fewer channels, those without rotation are the leading principal components
// of the group's keys, weighted or not. The largest and the least keys start with weight 0.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/indexer/index_branch.h"
#include "experiments/fit/data.h"

namespace msa::experiments::fit {

/// Throws InputError if the start is impossible: from_qk and pca need the model's frequencies (its
/// rotary_dim a multiple of the index's, with evenly spaced pairs, unless chooses_pairs), and index
/// heads that divide the query heads of each group evenly.
void check_start(const FitOptions&, const IndexForm&, const io::LayerInfo&,
                 std::span<const double> model);

/// The model's pair of each pair of the index, ascending; evenly spaced, unless chooses_pairs. Then
/// they are those of most energy, and the form gets their frequencies: the sum over groups of the
/// rms of the mean query times the rms of the key, neither of which RoPE changes. `tokens` are
/// those of training.
std::vector<int64_t> choose_pairs(const FitOptions&, const TrainingLayer&,
                                  std::span<const int64_t> tokens, IndexForm&);

/// To be called after check_start, with what choose_pairs returns.
IndexWeights start_weights(Start, const IndexForm&, std::span<const int64_t> pairs,
                           const TrainingLayer& whitened, std::span<const int64_t> tokens,
                           uint64_t seed);

}  // namespace msa::experiments::fit
