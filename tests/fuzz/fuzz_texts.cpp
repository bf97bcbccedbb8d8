// SPDX-License-Identifier: MIT
// Gives bytes to what reads texts past HDF5, at the speed of memory.
#include "tests/fuzz/consume.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace msa::fuzz;
    if (size == 0) return 0;
    const std::string words(data + 1, data + size);
    switch (data[0] % 4) {
        case 0: consume_words(words); break;
        case 1:
            consume_names(words.substr(0, words.size() / 2), words.substr(words.size() / 2));
            break;
        default: consume_heap({data + 1, size - 1}); break;
    }
    return 0;
}
