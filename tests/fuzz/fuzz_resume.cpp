// SPDX-License-Identifier: MIT
// Damages the files of an unfinished run and takes it up.
#include "tests/fuzz/consume.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    msa::fuzz::consume_run(data, size);
    return 0;
}
