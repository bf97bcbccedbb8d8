// SPDX-License-Identifier: MIT
// The errors of attention over many choices of blocks, in one pass. Attention to each single block
// is computed once. Attention over a choice is the mean of those over the chosen blocks, weighted
// by their shares of dense attention.
#pragma once

#include <span>
#include <vector>

#include "experiments/driver/attend.h"

namespace msa::experiments::measure {

struct ChoiceError {
    Tensor<double, 2> squared;  // [Nq, Hkv] |o_choice - o_dense|^2, over the group's heads
    Tensor<float, 2> lse;       // [Nq, Hq] of attention over the choice
};

/// The error of each choice, ids [Nq, Hkv, any k] on the host. A query that keeps no block within
/// its window has o_choice = 0. o_choice is within joined_bound of core/tolerance.h. A backend with
/// its own memory, or with operands other than floats, attends to one choice after the other,
/// because single blocks would need more calls with fewer queries and more outputs to copy. A row's
/// result depends neither on other rows, nor on other choices, nor on the threads.
std::vector<ChoiceError> squared_errors(Backend&, const Problem&, const AttentionInput&,
                                        const Attention& dense,
                                        std::span<const View<const int32_t, 3>> choices);

}  // namespace msa::experiments::measure
