// SPDX-License-Identifier: MIT
#pragma once

#include <cstdint>
#include <functional>

#include "core/select/policy.h"

namespace msa {

/// The lightning indexer's token scores I = sum over heads of max(0, index_q . index_k), the heads
/// of index_q weighted alike. Calls visit(row, I) for every query of the chunk, I [keys it sees] on
/// the host; from many threads.
void for_each_lightning_row(
    const SelectorLayer&, const SelectorChunk&,
    const std::function<void(int64_t row, View<const float, 1> scores)>& visit);

}  // namespace msa
