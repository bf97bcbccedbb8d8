// SPDX-License-Identifier: MIT
// Whether, and on which device, the backend can start.
#pragma once

#include <limits>
#include <string>

#include "gpu/runtime.h"

namespace msa::cuda {

/// "13.0", of a number that CUDA gives.
std::string version(int number);
/// Can anything run here at all?
Support usable();
/// The names of the backend, and what they change: sums in any order; kernels in the instructions
/// of compute capability 8.0 alone; and tiles for as little shared memory as 8.6 has.
struct Variant {
    const char* name;
    bool unordered = false, as_ampere = false;
    int most_shared = std::numeric_limits<int>::max();  // of a thread block
};
inline constexpr const char* kUnorderedName = "cuda-unordered";
inline constexpr Variant kVariants[] = {{"cuda"},
                                        {kUnorderedName, true},
                                        {"cuda-sm80", false, true},
                                        {"cuda-sm86", false, true, 99 << 10}};
/// Device `ordinal`, which is chosen. InputError where there is none, UnsupportedError where it
/// cannot run the kernels of this build.
Device require_device(int ordinal, const Variant&);

}  // namespace msa::cuda
