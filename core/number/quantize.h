// SPDX-License-Identifier: MIT
// Number formats of stored attention operands, simulated in float: values become those that a
// kernel would read. They are rounded to nearest, ties to even. Larger values and infinities become
// the largest finite value. NaN stays NaN.
//
// A scale is one float for all values that share it: their largest finite magnitude over the
// format's largest finite value. Zeros stay zeros. fp4 is MXFP4 of the OCP Microscaling formats
// (MX) 1.0: 32 values of e2m1 share a power of two (e8m0), the exponent of their largest magnitude
// minus that of the format; scaled values beyond 6 become 6.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace msa {

enum class NumberFormat : uint8_t {
    float32,
    bfloat16,
    float16,
    float8_e4m3,
    float8_e5m2,
    int8,
    int4,
    mxfp4
};
inline constexpr size_t kNumberFormats = 8;
/// "f32", "bf16", "f16", "e4m3", "e5m2", "int8", "int4", "fp4"
const char* to_string(NumberFormat);

/// The values that share a scale: none (no scale), all, those of one token and head, or kScaleBlock
/// channels of these.
enum class ScaleUnit : uint8_t { none, tensor, token, block };
inline constexpr size_t kScaleUnits = 4;
inline constexpr int64_t kScaleBlock = 32;
/// "token"
const char* to_string(ScaleUnit);

/// The valid units of a format: none for f32, bf16 and f16; tensor, token and block for int8 and
/// int4 (symmetric, -127 to 127 and -7 to 7); all four for e4m3 and e5m2; block for fp4.
std::vector<ScaleUnit> scale_units(NumberFormat);

/// Bits of one value, without its scale.
int bits_of(NumberFormat);
/// The largest finite value.
float largest_of(NumberFormat);
/// The element type of this format, if backends have one.
std::optional<Element> element_of(NumberFormat);

/// How operands are stored. `rotated`: after rotate() of each head's channels.
struct Precision {
    NumberFormat format = NumberFormat::float32;
    ScaleUnit unit = ScaleUnit::none;
    bool rotated = false;
    bool operator==(const Precision&) const = default;
};
/// "int8, scale per token, rotated"
std::string to_string(const Precision&);

/// Bits per token of `tokens` tokens, including its share of the scales (32 bits each; 8 for fp4).
double bits_per_token(const Precision&, int64_t tokens, int64_t heads, int64_t channels);

/// The orthonormal Hadamard transform of the channels of [tokens, heads, channels], its own
/// inverse. Applied to both operands, it leaves their product unchanged and spreads an outlier
/// channel over all channels. InputError unless channels is a power of two.
void rotate(View<float, 3> values);

/// Replaces values [tokens, heads, channels] by those that `precision` stores; rotated ones stay
/// rotated.
void store_as(const Precision& precision, View<float, 3> values);

}  // namespace msa
