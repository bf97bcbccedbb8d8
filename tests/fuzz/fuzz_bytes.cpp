// SPDX-License-Identifier: MIT
// Gives bytes to the readers as a file in memory: the input itself, or a valid file in which the
// input overwrites what the texts of variable length hang on. (Anywhere else they mostly test
// HDF5.)
#include "tests/fuzz/builder.h"
#include "tests/fuzz/consume.h"
#include "tests/fuzz/heap.h"

namespace {

struct Template {
    std::vector<uint8_t> bytes;
    std::vector<size_t> offsets = msa::fuzz::heap_structure(bytes);
};

void patched(Template file, const uint8_t* data, size_t size,
             void (*consume)(std::span<const uint8_t>)) {
    for (; size >= 3; data += 3, size -= 3)
        file.bytes[file.offsets[(data[0] + 256U * data[1]) % file.offsets.size()]] = data[2];
    consume(file.bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace msa::fuzz;
    static const Template activations{build_activations(nullptr, 0)};
    static const Template results{build_results(nullptr, 0)};
    if (size == 0) return 0;
    switch (data[0] % 4) {
        case 0: consume_activations({data, size}); break;
        case 1: consume_results({data, size}); break;
        case 2: patched(activations, data + 1, size - 1, consume_activations); break;
        default: patched(results, data + 1, size - 1, consume_results); break;
    }
    return 0;
}
