// SPDX-License-Identifier: MIT
// Gives bytes to the readers as a file in memory.
#include "tests/fuzz/consume.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    msa::fuzz::consume_activations({data, size});
    msa::fuzz::consume_results({data, size});
    return 0;
}
