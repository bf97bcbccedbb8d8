// SPDX-License-Identifier: MIT
// Gives the input bytes to the readers as a file.
#include <fstream>

#include "tests/fuzz/consume.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const msa::fuzz::TemporaryFile file;
    std::ofstream(file.path(), std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    msa::fuzz::consume_activations(file.path());
    msa::fuzz::consume_results(file.path());
    return 0;
}
