// SPDX-License-Identifier: MIT
#include "tests/support/random.h"

#include <cmath>
#include <random>

namespace msa::test {

void fill_with_normals(float* values, int64_t count, uint64_t stream, float sigma) {
    std::mt19937_64 generator(seed() * 1000003 + stream);
    const auto between_ends = [&] {  // of [-1, 1]
        return 2 * (static_cast<float>(generator()) * 0x1p-64F) - 1;
    };
    for (int64_t i = 0; i < count; i += 2) {
        float x = 0, y = 0, square = 0;
        do {
            x = between_ends();
            y = between_ends();
            square = x * x + y * y;
        } while (square > 1 || square == 0);
        const float grown = std::sqrt(-2 * std::log(square) / square);
        values[i] = y * grown * sigma;
        if (i + 1 < count) values[i + 1] = x * grown * sigma;
    }
}

}  // namespace msa::test
