// SPDX-License-Identifier: MIT
#include "experiments/bench/check_rows.h"

namespace msa::experiments::bench {

Tensor<float, 3> fetch_head(Backend& backend, const Stored<3>& from, int64_t first, int64_t count,
                            int64_t head) {
    constexpr int64_t kPiece = int64_t{1} << 24;  // bytes, which malloc keeps
    const int64_t heads = from.shape()[1], width = from.shape()[2];
    const int64_t piece = std::max<int64_t>(1, kPiece / from.row_bytes());
    Tensor<float, 3> values({count, 1, width});
    const auto take = [&](int64_t begin, const auto& rows) {
#pragma omp parallel for
        for (int64_t n = 0; n < rows.extent(0); ++n)
            for (int64_t d = 0; d < width; ++d)
                values.data()[(begin + n) * width + d] =
                    static_cast<float>(rows.data()[(n * heads + head) * width + d]);
    };
    for (int64_t begin = 0; begin < count; begin += piece) {
        const In<3> part = from.slice(first + begin, std::min(piece, count - begin));
        if (part.element() == Element::bf16)
            take(begin, backend.download(part.as<const bf16>()));
        else
            take(begin, backend.download(part.as<const float>()));
    }
    return values;
}

}  // namespace msa::experiments::bench
