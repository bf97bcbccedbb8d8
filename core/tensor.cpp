// SPDX-License-Identifier: MIT
#include "core/tensor.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace msa {

const char* to_string(Space space) { return space == Space::host ? "host" : "device"; }

const char* to_string(Element element) {
    switch (element) {
        case Element::f32: return "f32";
        case Element::f64: return "f64";
        case Element::f16: return "f16";
        case Element::bf16: return "bf16";
        case Element::e4m3: return "e4m3";
        case Element::int8: return "int8";
        case Element::i32: return "i32";
    }
    return "?";
}

int64_t element_bytes(Element element) {
    switch (element) {
        case Element::f64: return 8;
        case Element::f32:
        case Element::i32: return 4;
        case Element::f16:
        case Element::bf16: return 2;
        case Element::e4m3:
        case Element::int8: return 1;
    }
    return 0;
}

std::shared_ptr<void> allocate_host(int64_t bytes, Fill fill) {
    constexpr size_t kAlignment = 64;
    MSA_CHECK(bytes >= 0);
    // At least one cache line, so that an empty tensor is present (non-null) all the same.
    const size_t padded = (static_cast<size_t>(bytes) / kAlignment + 1) * kAlignment;
    void* memory = std::aligned_alloc(kAlignment, padded);
    if (memory == nullptr) throw std::bad_alloc();
    if (fill == Fill::zeros) std::memset(memory, 0, padded);
    return {memory, std::free};
}

}  // namespace msa
