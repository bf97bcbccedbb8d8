// SPDX-License-Identifier: MIT
#pragma once

#include <optional>

#include "core/select/block_vectors.h"

namespace msa {

/// Block scores of SeerAttention's gate: t of core/indexer/gate_kl.h.
class GateScores {
public:
    GateScores() = default;
    /// gate_k [blocks of all sequences, Hkv, dg] on the host. Throws InputError if the layer has
    /// another number of blocks.
    GateScores(const SelectorLayer&, View<const float, 3> gate_k);

    /// t [Nq, Hkv, B] on the host for gate_q [Nq, Hkv, dg] on the host: a softmax over the blocks
    /// before the query's own; 0 for its own and those that it does not see.
    Tensor<float, 3> score(Backend&, const Problem& chunk, View<const float, 3> gate_q) const;

private:
    std::optional<VectorScores> products_;
};

}  // namespace msa
