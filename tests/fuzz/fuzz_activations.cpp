// SPDX-License-Identifier: MIT
// Feeds the readers hostile files. The input bytes drive a builder that makes an HDF5 file near
// the msa-activations format, with wrong types, shapes, attributes, names and values; whatever it
// holds, the reader must answer with data or an InputError.
#include "tests/fuzz/builder.h"
#include "tests/fuzz/consume.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    msa::fuzz::consume_activations(msa::fuzz::build_activations(data, size));
    return 0;
}
