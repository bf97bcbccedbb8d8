// SPDX-License-Identifier: MIT
#include "experiments/bench/check_rows.h"

namespace msa::experiments::bench {

Tensor<float, 3> fetch_head(Backend& backend, const Stored<3>& from, int64_t first, int64_t count,
                            int64_t head) {
    constexpr int64_t kPiece = int64_t{1} << 24;  // bytes, which malloc keeps
    const int64_t width = from.shape()[2];
    const int64_t piece = std::max<int64_t>(1, kPiece / from.row_bytes());
    Tensor<float, 3> values({count, 1, width});
    for (int64_t begin = 0; begin < count; begin += piece) {
        const int64_t rows = std::min(piece, count - begin);
        const Tensor<float, 3> all = fetch(backend, from, first + begin, rows);
        for (int64_t n = 0; n < rows; ++n)
            std::copy_n(all.view()[n][head].data(), width, values.view()[begin + n].data());
    }
    return values;
}

}  // namespace msa::experiments::bench
