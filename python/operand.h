// SPDX-License-Identifier: MIT
// Arrays of the caller's as they lie in memory: tensors of PyTorch, read through their own methods
// (no header of PyTorch, so that one build serves its versions), and what speaks DLPack.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "core/element.h"

namespace msa {

inline constexpr int kOnHost = -1;     // Operand::device of the CPU
inline constexpr int kElsewhere = -2;  // neither a CPU nor CUDA's

struct Operand {
    static constexpr size_t kMostAxes = 4;  // of which the shape is kept

    void* data = nullptr;
    size_t axes = 0;
    std::array<int64_t, kMostAxes> shape{}, strides{};  // strides in elements
    bool contiguous = false;                            // row-major
    std::optional<Element> element;                     // absent: no operation takes it
    std::string type;       // then its name, "int64", or what it is that is no array
    bool bytes = false;     // numpy's uint8, in which numpy has e4m3
    bool readable = true;   // a dense array of plain numbers
    bool writable = true;   // numpy's may be read-only
    int device = kOnHost;   // ordinal of CUDA's
    nanobind::object copy;  // of a tensor whose memory holds its values negated; else it itself
    nanobind::ndarray<nanobind::ro> owner;
};

/// Python has addresses as integers.
inline void* pointer_to(uintptr_t address) {
    return reinterpret_cast<void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

/// From now on tensors of this module, `torch`, are read directly; until then through DLPack.
void use_torch(nanobind::handle torch);

/// Needs the GIL. What is no array becomes an operand that is not readable.
void read_operand(nanobind::handle source, Operand& to);

}  // namespace msa

namespace nanobind::detail {

template <>
struct type_caster<msa::Operand> {
    NB_TYPE_CASTER(msa::Operand, const_name("array"))

    bool from_python(handle source, uint8_t, cleanup_list*) noexcept {
        msa::read_operand(source, value);
        return true;
    }
    static handle from_cpp(const msa::Operand&, rv_policy, cleanup_list*) noexcept = delete;
};

}  // namespace nanobind::detail
