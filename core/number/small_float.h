// SPDX-License-Identifier: MIT
// Floating point of a few bits. A magnitude's code is its exponent bits followed by its fraction
// bits, so codes have the order of their values.
#pragma once

namespace msa {

struct SmallFloat {
    int bias = 0, fraction_bits = 0;
    float largest = 0;  // finite

    /// The code of the nearest magnitude, ties to the even code, at most that of `largest`.
    /// `magnitude` must not be negative or NaN.
    int code(float magnitude) const;
    /// The magnitude of a code; subnormals have the exponent 0.
    float magnitude(int code) const;
};

/// Sources: OCP 8-bit floating point specification (OFP8); OCP Microscaling formats (MX) 1.0.
inline constexpr SmallFloat kE4m3{7, 3, 448}, kE5m2{15, 2, 57344}, kE2m1{1, 1, 6};

}  // namespace msa
