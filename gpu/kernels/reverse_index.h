// SPDX-License-Identifier: MIT
// Which queries selected a block of keys, for the plain kernels that go by key.
#pragma once

#include "gpu/runtime.h"

namespace msa::cuda {

/// List group * blocks + block, blocks numbered through all sequences (Layout::key_blocks), is
/// [starts[list], starts[list + 1]) of `queries`, ascending. Absent: all queries of the block's
/// sequence.
struct ReverseIndex {
    const int64_t* starts;
    const int32_t* queries;
};

/// Scratch memory of a ReverseIndex of ids [Nq, Hkv, k], not empty; the call is of a whole problem.
struct SortedUses {
    Tensor<int32_t, 1> queries;
    Tensor<int64_t, 1> starts;

    SortedUses(const Call&, View<const int32_t, 3> ids);
    ReverseIndex index() const { return {starts.data(), queries.data()}; }
};

}  // namespace msa::cuda
