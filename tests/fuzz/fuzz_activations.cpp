// SPDX-License-Identifier: MIT
// Feeds the readers hostile files. The input bytes drive a builder that writes an HDF5 file near
// the msa-activations format, with wrong types, shapes, attributes, names and values; whatever it
// holds, the reader must answer with data or an InputError. (Bytes given to HDF5 as a file mostly
// test HDF5: see fuzz_bytes.cpp.)
#include <hdf5.h>

#include "tests/fuzz/builder.h"
#include "tests/fuzz/consume.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const msa::fuzz::TemporaryFile file;
    msa::fuzz::build_activations(file.path(), data, size);
    msa::fuzz::consume_activations(file.path());
    return 0;
}
