// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <vector>

#include "core/select/policy.h"

namespace msa {

/// Mean q [Hq, dh] of the queries of block `block` of a sequence.
Tensor<float, 2> mean_query(const SelectorLayer&, int64_t sequence, int64_t block);

/// [Nq, Hq, dh]: for each query of the chunk the mean of its block's queries; in the decode phase
/// the query itself.
Tensor<float, 3> query_block_means(const SelectorLayer&, const SelectorChunk&);

/// [blocks of the sequence]: how many counted queries each block has.
std::vector<int64_t> counted_of_blocks(const SelectorLayer&, int64_t sequence);

}  // namespace msa
