// SPDX-License-Identifier: MIT
// Gives bytes to what reads texts past HDF5, at the speed of memory.
#include "tests/fuzz/consume.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace msa::fuzz;
    if (size == 0) return 0;
    const uint8_t *const begin = data + 1, *const end = data + size,
                         *const middle = begin + (size - 1) / 2;
    switch (data[0] % 4) {
        case 0: consume_words({begin, end}); break;
        case 1: consume_names({begin, middle}, {middle, end}); break;
        default: consume_heap({begin, end}); break;
    }
    return 0;
}
