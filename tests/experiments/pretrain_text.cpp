// SPDX-License-Identifier: MIT
#include "tests/experiments/pretrain_text.h"

namespace msa::test {

std::string prose(int64_t bytes, int64_t seed) {
    std::string text;
    while (std::ssize(text) < bytes) {
        const uint64_t bits = mix(static_cast<uint64_t>(seed), std::ssize(text));
        text += bits % 6 == 0    ? ' '
                : bits % 31 == 1 ? '\n'
                                 : static_cast<char>('A' + bits / 64 % 26);
    }
    return text;
}

}  // namespace msa::test
