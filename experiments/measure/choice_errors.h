// SPDX-License-Identifier: MIT
// How far attention over many choices of blocks is from dense attention, for the price of one pass:
// attention of the queries to single blocks is computed once, and attention over a choice is its
// mean over the chosen blocks, weighted by their shares of dense attention.
#pragma once

#include <span>
#include <vector>

#include "experiments/driver/attend.h"

namespace msa::experiments::measure {

struct ChoiceError {
    Tensor<double, 2> squared;  // [Nq, Hkv] |o_choice - o_dense|^2, over the group's heads
    Tensor<float, 2> lse;       // [Nq, Hq] of attention over the choice
};

/// Of each choice, ids [Nq, Hkv, any k] on the host. A query that keeps no block, or whose window
/// hides all that it keeps, has o_choice = 0. o_choice is within joined_bound of core/tolerance.h.
/// Where a backend works in memory of its own or on other operands than floats, it attends to one
/// choice after the other: single blocks are more calls, of fewer queries each, and more outputs to
/// copy. What a row gives depends neither on the rows beside it, nor on the other choices, nor on
/// the threads.
std::vector<ChoiceError> squared_errors(Backend&, const Problem&, const AttentionInput&,
                                        const Attention& dense,
                                        std::span<const View<const int32_t, 3>> choices);

}  // namespace msa::experiments::measure
