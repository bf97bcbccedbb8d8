// SPDX-License-Identifier: MIT
// Common parts of the tuned kernels' predicates.
#pragma once

#include <cstdint>

#include "core/backend.h"
#include "core/error.h"
#include "gpu/key_pages.h"
#include "gpu/runtime.h"

namespace msa::cuda {

inline constexpr int64_t kMostSelected = 32;  // k: a row's list is one value per lane of a warp

inline constexpr int kFirstOfE4m3 = 89;  // compute capability with mma.sync of e4m3

/// Whether the kernels that run on the device multiply e4m3; Hopper's do.
inline bool multiplies_e4m3(const Device& device) {
    return device.is_hopper() || device.compiled_for >= kFirstOfE4m3;
}
inline Support compiled_before_e4m3(const Device& device) {
    return Support::no(concat("its kernels were compiled for compute capability ",
                              device.compiled_for / 10, '.', device.compiled_for % 10,
                              ", e4m3 needs 8.9 or later"));
}

inline bool is_tuned_width(int64_t width) { return width == 64 || width == 128; }
inline bool is_wide(int64_t head_dim) { return head_dim == 256; }  // which few kernels take
inline bool is_tuned_block(int64_t size) { return size == 32 || is_tuned_width(size); }

/// The answer of a kernel that needs Hopper's instructions.
inline Support not_hopper() {
    return Support::no("it has no kernel in the instructions of compute capability 8.0");
}
inline Support little_shared(int bytes, int needed) {
    return Support::no(
        concat("a thread block has ", bytes, " bytes of shared memory, must be at least ", needed));
}
inline Support not_aligned() {
    return Support::no("operands and outputs must begin at multiples of 16 bytes");
}
inline Support not_tuned(const char* size, int64_t value, bool or_wide = false) {
    return Support::no(
        concat(size, " is ", value, or_wide ? ", must be 64, 128 or 256" : ", must be 64 or 128"));
}
inline Support not_tuned_block(int64_t size) {
    return Support::no(concat("the block size is ", size, ", must be 32, 64 or 128"));
}
inline Support above(const char* size, int64_t value, int64_t most) {
    return Support::no(concat(size, " is ", value, ", must be at most ", most));
}
inline Support not_element(Element element, const char* must_be) {
    return Support::no(
        concat("an operand or output is ", to_string(element), ", must be ", must_be));
}

inline Support in_pages() { return Support::no("keys are in pages"); }
/// The answer of a kernel that copies tiles of keys from pages: each is whole, or half a tile.
inline Support takes_page_size(int64_t page_size) {
    return page_size % KeyMap::kHalfTile == 0
               ? Support()
               : Support::no(concat("pages have ", page_size, " tokens, must have a multiple of ",
                                    KeyMap::kHalfTile));
}
/// `otherwise`, or why such a kernel does not take a call's keys, if they are in pages.
template <typename... Others>
Support takes_pages(const Support& otherwise, const OperandScales& scales, const auto& keys,
                    const Others&... others) {
    if (!otherwise.yes || !keys.paged()) return otherwise;
    if (scales.k.size() > 1) return Support::no("scales belong to pages");
    constexpr int64_t kMost = int64_t{1} << 31;
    const auto& strides = keys.strides();
    if (keys.page_table().size() * keys.page_size() + 8192 > kMost ||
        keys.pages() * (strides[0] / strides[1]) > kMost)
        return Support::no("the page table has room for more than 2^31 tokens");
    if (keys.pages() < 1 || strides[0] % strides[1] != 0 ||
        strides[1] * element_bytes(keys.element()) % 16 != 0)
        return Support::no("strides of pages must be multiples of those of tokens, in 16 bytes");
    if (((others.page_table().data() != keys.page_table().data() || others.strides() != strides ||
          others.pages() != keys.pages()) ||
         ...))
        return Support::no("k and v must have one page table and the same strides");
    return {};
}

/// The answer for a window or a soft cap, which only the plain kernels support.
inline Support not_plain(const Problem& p) {
    return Support::no(p.window ? concat("the window is ", *p.window, ", must be absent")
                                : concat("the soft cap is ", *p.softcap, ", must be absent"));
}

inline int narrow(int64_t x) { return static_cast<int>(x); }

}  // namespace msa::cuda
