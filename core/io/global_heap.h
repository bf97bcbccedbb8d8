// SPDX-License-Identifier: MIT
// Texts of variable length. HDF5 keeps them in global heaps and trusts every size it finds there,
// so that a damaged file crashes it. They are read here instead, each size checked first.
#pragma once

#include <hdf5.h>

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "core/io/h5.h"

namespace msa::io::h5 {

/// A text of variable length as an attribute or dataset stores it: length (4 bytes), address of a
/// heap (8), index in it (4).
using HeapReference = std::array<uint8_t, 16>;

/// A type in memory by which H5Aread and H5Dread give references instead of texts.
Handle heap_reference_type();

/// A file of `size` bytes; `read` gives `count` of them from `address` on, or false beyond the end.
struct HeapFile {
    uint64_t size = 0;
    std::function<bool(uint64_t address, uint64_t count, void* to)> read;
};

/// The text up to a NUL, or nothing where the heap is damaged.
std::optional<std::string> find_text(const HeapFile&, const HeapReference&);

/// The same of the file of `object`, which is anything of it. InputError when the heap
/// is damaged.
std::string heap_text(hid_t object, const HeapReference& reference, const Place& place);

}  // namespace msa::io::h5
