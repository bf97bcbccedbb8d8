// SPDX-License-Identifier: MIT
// Number formats that the operands of attention may be stored in, and what storing does to them.
// Values stay floats: they become those that a kernel would read. Nearest, ties to even; beyond the
// largest finite value, infinities too: that value. NaN stays NaN.
//
// A scale is one float for all values that share it: their largest finite magnitude over the
// format's largest finite value. Of zeros, zeros. fp4 is MXFP4 of the OCP Microscaling formats (MX)
// 1.0: 32 values of e2m1 share a power of two (e8m0), that of the largest magnitude over that of
// the format; what it leaves beyond 6 becomes 6.
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

/// What shares a scale: nothing (values are stored as they are), all values, those of one token and
/// head, or kScaleBlock channels of these.
enum class ScaleUnit : uint8_t { none, tensor, token, block };
inline constexpr size_t kScaleUnits = 4;
inline constexpr int64_t kScaleBlock = 32;
/// "token"
const char* to_string(ScaleUnit);

/// The units that a format goes with: none for f32, bf16 and f16; tensor, token and block for int8
/// and int4 (symmetric, -127 to 127 and -7 to 7); all four for e4m3 and e5m2; block for fp4.
std::vector<ScaleUnit> scale_units(NumberFormat);

/// Bits of one value, without its scale.
int bits_of(NumberFormat);
/// The largest finite value.
float largest_of(NumberFormat);
/// The type of a kernel's operands in this format, where backends know one.
std::optional<Element> element_of(NumberFormat);

/// How operands are stored. `rotated`: the channels of each head after rotate().
struct Precision {
    NumberFormat format = NumberFormat::float32;
    ScaleUnit unit = ScaleUnit::none;
    bool rotated = false;
    bool operator==(const Precision&) const = default;
};
/// "int8, scale per token, rotated"
std::string to_string(const Precision&);

/// Bits of one of `tokens` tokens of so many heads, its share of the scales included (32 bits each;
/// 8 for fp4).
double bits_per_token(const Precision&, int64_t tokens, int64_t heads, int64_t channels);

/// The orthonormal Hadamard transform of the channels of [tokens, heads, channels], its own
/// inverse. On both operands of a product it leaves the product as it is; an outlier channel is
/// spread over all. channels a power of two, else InputError.
void rotate(View<float, 3> values);

/// [tokens, heads, channels] as `precision` stores them; rotated ones stay rotated.
void store_as(const Precision& precision, View<float, 3> values);

}  // namespace msa
