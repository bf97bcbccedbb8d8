// SPDX-License-Identifier: MIT
// Gives bytes to what shows and sorts texts; no file is opened.
#include "tests/fuzz/consume.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace msa::fuzz;
    if (size == 0) return 0;
    const uint8_t *const begin = data + 1, *const end = data + size,
                         *const middle = begin + (size - 1) / 2;
    if (data[0] % 2 == 0)
        consume_words({begin, end});
    else
        consume_names({begin, middle}, {middle, end});
    return 0;
}
