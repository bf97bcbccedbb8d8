// SPDX-License-Identifier: MIT
// The int8 copy of a layer's index keys.
#include <vector>

#include "core/number/convert.h"
#include "experiments/bench/operands.h"

namespace msa::experiments::bench {

void fill_coarse(Backend& backend, const Problem& p, IndexOperands& index) {
    if (index.coarse_blocks.size() == 0) return;
    std::vector<char> stored(static_cast<size_t>(index.k.bytes()));
    backend.copy(stored.data(), Space::host, index.k.data(), backend.space(), index.k.bytes());
    Tensor<float, 2> keys(index.k.shape(), Fill::nothing);
    decode(stored.data(), index.k.element(), {keys.data(), static_cast<size_t>(keys.size())});
    const StoredCoarseKeys coarse = store_coarse(p, keys);
    backend.copy(index.coarse_keys.data(), backend.space(), coarse.keys.data(), Space::host,
                 coarse.keys.size());
    backend.copy(index.coarse_blocks.data(), backend.space(), coarse.blocks.data(), Space::host,
                 coarse.blocks.size() * int64_t{sizeof(float)});
}

}  // namespace msa::experiments::bench
