// SPDX-License-Identifier: MIT
// Whether, and on which device, the backend can start.
#pragma once

#include <limits>
#include <string>

#include "gpu/runtime.h"

namespace msa::cuda {

/// "13.0" from CUDA's version number.
std::string version(int number);
/// Whether any backend of this build can start.
Support usable();
/// A name of the backend and its effect: sums in any order; only kernels with the instructions of
/// compute capability 8.0; tiles for the small shared memory of 8.6.
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
/// Makes device `ordinal` current and returns it. InputError if there is none, UnsupportedError if
/// it cannot run the kernels of this build.
Device require_device(int ordinal, const Variant&);

}  // namespace msa::cuda
