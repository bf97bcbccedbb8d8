// SPDX-License-Identifier: MIT
// The architectures of indexers that can be fitted. An architecture is a row here, which says how
// its operands are projected (index_branch.h), and a file with its loss: Backend::index_kl of msa,
// lightning_kl.h, gate_kl.h, qsa_kl.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace msa {

enum class Architecture : uint8_t { msa, dsa, seerattention, qsa };

struct ArchitectureTraits {
    const char* name;           // as users type it
    const char* weights;        // what the names of its weights in a file begin with: "w_index_q"
    bool own_inputs = false;    // a query head and a key head per group; each reads its own inputs
    bool head_weights = false;  // a third projection, to a weight of each query head
};

/// In the order of the enumeration.
inline constexpr ArchitectureTraits kArchitectures[] = {
    {.name = "msa", .weights = "index"},
    {.name = "dsa", .weights = "index", .head_weights = true},
    {.name = "seerattention", .weights = "gate", .own_inputs = true},
    {.name = "qsa", .weights = "qsa"},
};

constexpr const ArchitectureTraits& traits_of(Architecture architecture) {
    return kArchitectures[static_cast<size_t>(architecture)];
}

}  // namespace msa
