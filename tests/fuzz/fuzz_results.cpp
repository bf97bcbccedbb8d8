// SPDX-License-Identifier: MIT
// The same as fuzz_activations.cpp for msa-results.
#include "tests/fuzz/builder.h"
#include "tests/fuzz/consume.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    msa::fuzz::consume_results(msa::fuzz::build_results(data, size));
    return 0;
}
