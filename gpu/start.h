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
/// A name under which the backend is registered, and what differs under that name.
struct Variant {
    const char* name;
    bool unordered = false;                             // sums may be in any order
    bool as_ampere = false;                             // the kernels of sm80, as on no Hopper
    int most_shared = std::numeric_limits<int>::max();  // bytes of a thread block
};
inline constexpr const char* kUnorderedName = "cuda-unordered";
inline constexpr Variant kVariants[] = {{"cuda"},
                                        {kUnorderedName, true},
                                        {"cuda-sm80", false, true},
                                        {"cuda-sm86", false, true, 99 << 10}};
/// That no test has run on a chip of this compute capability yet (gpu/check.sh); empty for those
/// that one has.
std::string never_run_on(int capability);
/// Makes device `ordinal` current and returns it. InputError if there is none, UnsupportedError if
/// it cannot run the kernels of this build.
Device require_device(int ordinal, const Variant&);

}  // namespace msa::cuda
