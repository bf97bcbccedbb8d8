// SPDX-License-Identifier: MIT
#include "core/number/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "core/number/convert.h"
#include "core/number/e4m3.h"
#include "core/number/half.h"
#include "core/number/int8.h"
#include "core/number/small_float.h"

namespace msa {
namespace {

constexpr int kScaleBits = 32, kPowerBits = 8;  // of a scale; of fp4's
constexpr int64_t kParallelValues = 1 << 14;    // fewer are not worth a team of threads
constexpr int kLeastPower = -127, kMostPower = 127;

struct Row {
    const char* name;
    int bits;
    float largest;  // of the formats that are not an Element
    std::optional<Element> element;
};
constexpr Row kRows[kNumberFormats] = {
    {"f32", 32, 0, Element::f32},
    {"bf16", 16, 0, Element::bf16},
    {"f16", 16, 0, Element::f16},
    {"e4m3", 8, 0, Element::e4m3},
    {"e5m2", 8, kE5m2.largest, {}},
    {"int8", 8, Int8::kLargest, {}},
    {"int4", 4, 7, {}},
    {"fp4", 4, kE2m1.largest, {}},
};
const Row& row_of(NumberFormat format) { return kRows[static_cast<size_t>(format)]; }

template <typename T>
float as(float value) {
    return static_cast<float>(static_cast<T>(value));
}

/// Of a value that is finite.
float nearest(NumberFormat format, float value) {
    const auto small = [&](const SmallFloat& of) {
        return std::copysign(of.magnitude(of.code(std::fabs(value))), value);
    };
    switch (format) {
        case NumberFormat::bfloat16: return as<bf16>(value);
        case NumberFormat::float16: return as<f16>(value);
        case NumberFormat::float8_e4m3: return as<e4m3>(value);
        case NumberFormat::float8_e5m2: return small(kE5m2);
        case NumberFormat::mxfp4: return small(kE2m1);
        case NumberFormat::int8: return as<Int8>(value);
        case NumberFormat::int4: return std::nearbyint(value);
        default: return value;
    }
}

/// The power of two that MX gives to values of this largest magnitude.
float power_scale(float largest) {
    const int power = std::ilogb(largest) - std::ilogb(kE2m1.largest);
    return std::ldexp(1.0F, std::clamp(power, kLeastPower, kMostPower));
}

float scale_of(NumberFormat format, float largest) {
    if (largest == 0) return 1;
    if (format == NumberFormat::mxfp4) return power_scale(largest);
    return std::max(largest / largest_of(format), std::numeric_limits<float>::denorm_min());
}

float largest_finite(std::span<const float> values) {
    float largest = 0;
    for (float value : values)
        if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
    return largest;
}

void store_scaled(NumberFormat format, float scale, std::span<float> values) {
    const float most = largest_of(format);
    for (float& value : values)
        if (!std::isnan(value))
            value = nearest(format, std::clamp(value / scale, -most, most)) * scale;
}

/// A scale of its own for every `count` values.
void store_in_units(NumberFormat format, int64_t count, std::span<float> values) {
    const auto all = std::ssize(values);
    for (int64_t begin = 0; begin < all; begin += count) {
        const std::span<float> unit = values.subspan(
            static_cast<size_t>(begin), static_cast<size_t>(std::min(count, all - begin)));
        store_scaled(format, scale_of(format, largest_finite(unit)), unit);
    }
}

void rotate_row(std::span<float> row) {
    const size_t channels = row.size();
    for (size_t half = 1; half < channels; half *= 2)
        for (size_t begin = 0; begin < channels; begin += 2 * half)
            for (size_t c = begin; c < begin + half; ++c) {
                const float a = row[c], b = row[c + half];
                row[c] = a + b;
                row[c + half] = a - b;
            }
    const auto norm = static_cast<float>(1 / std::sqrt(static_cast<double>(channels)));
    for (float& value : row) value *= norm;
}

/// Calls `with` with each row of channels.
template <typename With>
void for_rows(View<float, 3> values, const With& with) {
    const int64_t channels = values.extent(2), rows = values.extent(0) * values.extent(1);
#pragma omp parallel for if (values.size() >= kParallelValues)
    for (int64_t r = 0; r < rows; ++r)
        with(std::span<float>(values.data() + r * channels, static_cast<size_t>(channels)));
}

}  // namespace

const char* to_string(NumberFormat format) { return row_of(format).name; }

const char* to_string(ScaleUnit unit) {
    switch (unit) {
        case ScaleUnit::tensor: return "tensor";
        case ScaleUnit::token: return "token";
        case ScaleUnit::block: return "block";
        default: return "none";
    }
}

std::vector<ScaleUnit> scale_units(NumberFormat format) {
    using enum ScaleUnit;
    switch (format) {
        case NumberFormat::float8_e4m3:
        case NumberFormat::float8_e5m2: return {none, tensor, token, block};
        case NumberFormat::int8:
        case NumberFormat::int4: return {tensor, token, block};
        case NumberFormat::mxfp4: return {block};
        default: return {none};
    }
}

int bits_of(NumberFormat format) { return row_of(format).bits; }

float largest_of(NumberFormat format) {
    const Row& row = row_of(format);
    return row.element ? static_cast<float>(largest_value(*row.element)) : row.largest;
}

std::optional<Element> element_of(NumberFormat format) { return row_of(format).element; }

std::string to_string(const Precision& precision) {
    std::string name = to_string(precision.format);
    if (precision.unit != ScaleUnit::none)
        name += concat(", scale per ", to_string(precision.unit));
    return precision.rotated ? name + ", rotated" : name;
}

double bits_per_token(const Precision& precision, int64_t tokens, int64_t heads, int64_t channels) {
    const auto scale =
        static_cast<double>(precision.format == NumberFormat::mxfp4 ? kPowerBits : kScaleBits);
    const auto rows = static_cast<double>(heads);
    const double values = rows * static_cast<double>(channels * bits_of(precision.format));
    switch (precision.unit) {
        case ScaleUnit::tensor: return values + scale / static_cast<double>(tokens);
        case ScaleUnit::token: return values + rows * scale;
        case ScaleUnit::block: {
            const int64_t blocks = (channels + kScaleBlock - 1) / kScaleBlock;
            return values + rows * scale * static_cast<double>(blocks);
        }
        default: return values;
    }
}

void rotate(View<float, 3> values) {
    const int64_t channels = values.extent(2);
    require(channels > 0 && std::has_single_bit(static_cast<uint64_t>(channels)),
            "the Hadamard rotation takes heads whose channels are a power of two, not ", channels);
    for_rows(values, rotate_row);
}

void store_as(const Precision& precision, View<float, 3> values) {
    if (precision.rotated) rotate(values);
    const NumberFormat format = precision.format;
    if (format == NumberFormat::float32) return;
    const std::span<float> all(values.data(), static_cast<size_t>(values.size()));
    switch (precision.unit) {
        case ScaleUnit::none:
            return for_rows(values, [&](std::span<float> row) { store_scaled(format, 1, row); });
        case ScaleUnit::tensor: {
            const float scale = scale_of(format, largest_finite(all));
            return for_rows(values,
                            [&](std::span<float> row) { store_scaled(format, scale, row); });
        }
        case ScaleUnit::token:
            return for_rows(values, [&](std::span<float> row) {
                store_in_units(format, std::ssize(row), row);
            });
        case ScaleUnit::block:
            return for_rows(
                values, [&](std::span<float> row) { store_in_units(format, kScaleBlock, row); });
    }
}

}  // namespace msa
