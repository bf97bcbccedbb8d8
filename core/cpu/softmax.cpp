// SPDX-License-Identifier: MIT
// The exponentials of core/cpu/tile.h, and what is made of them.
#include <array>
#include <bit>
#include <cmath>
#include <type_traits>
#include <utility>

#include "core/cpu/tile.h"
#include "core/cpu/vector.h"

namespace msa::cpu {
namespace {

/// x = n + f with |f| <= 1/2, and the polynomial of degree 6 whose largest relative distance from
/// 2^f is least, 1.6e-8 with its coefficients rounded: an eighth of an ulp. x is at most
/// 127; n wraps around where it is far below what counts.
///
/// Count vectors at a time, one operation after the other: the chain of one alone would fill the
/// schedulers of a core before its end.
template <int Count>
[[gnu::always_inline]] inline void exp2(Vec (&x)[Count]) {
    // Adding 1.5 * 2^23 rounds to an integer, here with the bias of an exponent in its last bits.
    constexpr float kRound = 12582912.0f + 127.0f;
    constexpr std::array kTerms{1.3398875e-3f, 9.6184369e-3f, 5.5503324e-2f,
                                2.4022648e-1f, 6.9314718e-1f, 1.0f};
    Vec shifted[Count], f[Count], y[Count];
#pragma GCC unroll 4
    for (int i = 0; i < Count; ++i) shifted[i] = x[i] + kRound;
#pragma GCC unroll 4
    for (int i = 0; i < Count; ++i) f[i] = x[i] - (shifted[i] - kRound);
#pragma GCC unroll 4
    for (int i = 0; i < Count; ++i) y[i] = broadcast(1.5353362e-4f);
#pragma GCC unroll 6
    for (const float term : kTerms)
#pragma GCC unroll 4
        for (int i = 0; i < Count; ++i) y[i] = y[i] * f[i] + term;
#pragma GCC unroll 4
    for (int i = 0; i < Count; ++i) {
        y[i] *= std::bit_cast<Vec>(std::bit_cast<UintVec>(shifted[i]) << 23);
        x[i] = x[i] < -125.0f ? Vec{} : y[i];
    }
}

[[gnu::always_inline]] inline Vec exp2(Vec x) {
    Vec one[1] = {x};
    exp2(one);
    return one[0];
}

/// (1 - t) / (1 + t) with t = e^(-2 |x|), its sign that of x.
Vec tanh(Vec x) {
    constexpr auto kFactor = static_cast<float>(2 * kLog2E);
    const Vec t = exp2(kFactor * (x < 0.0f ? x : -x));
    const Vec y = (1.0f - t) / (1.0f + t);
    return x < 0.0f ? -y : y;
}

/// b where a is NaN.
Vec max(Vec a, Vec b) { return a > b ? a : b; }

/// Joins lane l with lane l ^ Step, from half of the lanes down: all of them end up with the same.
template <int Step = kLanes / 2, typename Join>
float fold(Vec v, Join join) {
    const auto exchanged = [&]<int... Lane>(std::integer_sequence<int, Lane...>) {
        return __builtin_shufflevector(v, v, (Lane ^ Step)...);
    };
    const Vec joined = join(v, exchanged(std::make_integer_sequence<int, kLanes>{}));
    if constexpr (Step == 1)
        return joined[0];
    else
        return fold<Step / 2>(joined, join);
}

float lane_max(Vec v) {
    return fold(v, [](Vec a, Vec b) { return max(a, b); });
}

float lane_sum(Vec v) {
    return fold(v, [](Vec a, Vec b) { return a + b; });
}

// NOLINTNEXTLINE(misc-redundant-expression): a NaN alone differs from itself
IntVec is_nan(Vec x) { return x != x; }

bool any(IntVec mask) {
    int32_t bits = 0;
    for (int lane = 0; lane < kLanes; ++lane) bits |= mask[lane];
    return bits != 0;
}

/// logits = exp2(logits - reference) in place; returns their sum, over the lanes of a vector.
[[gnu::always_inline]] inline Vec exp2_and_sums(float* logits, int64_t count, float reference) {
    constexpr int kTogether = 4;
    const int64_t whole = count / kLanes * kLanes;
    Vec sum{};
    int64_t j = 0;
    for (; j + kTogether * kLanes <= whole; j += kTogether * kLanes) {
        Vec x[kTogether];
#pragma GCC unroll 4
        for (int i = 0; i < kTogether; ++i) x[i] = load(logits + j + i * kLanes) - reference;
        exp2(x);
#pragma GCC unroll 4
        for (int i = 0; i < kTogether; ++i) store(logits + j + i * kLanes, x[i]);
        sum += (x[0] + x[1]) + (x[2] + x[3]);
    }
    for (; j < whole; j += kLanes) {
        const Vec x = exp2(load(logits + j) - reference);
        store(logits + j, x);
        sum += x;
    }
    if (whole < count) {
        const IntVec rest = first_lanes(count - whole);
        const Vec before = load(logits + whole), x = exp2(before - reference);
        store(logits + whole, rest ? x : before);
        sum += rest ? x : 0;
    }
    return sum;
}

/// Moves the reference to the largest of `count` logits where that lies far above it; returns what
/// all sums before are scaled by.
float raise_reference(const float* logits, int64_t count, float& reference) {
    const int64_t whole = count / kLanes * kLanes;
    Vec largest = first_lanes(count - whole) ? load(logits + whole) : -kInfinity;
    for (int64_t j = 0; j < whole; j += kLanes) largest = max(load(logits + j), largest);
    constexpr float kSlack = 8;
    const float most = lane_max(largest);
    if (!(most > reference + kSlack)) return 1;
    const float factor = exp2(broadcast(reference - most))[0];
    reference = most;
    return factor;
}

/// The reference, and 0 where no logit above -inf has come yet.
float finite_reference(const OnlineSum& state) {
    return state.reference == -kInfinity ? 0 : state.reference;
}

void add_sum(OnlineSum& state, float factor, float sum) {
    state.sum = state.sum * double{factor} + double{sum};
}

/// into[j] = join(into[j], exp2(logits[j] - reference))
template <typename Join>
void join_exp2(const float* logits, int64_t count, float reference, float* into, Join join) {
    const int64_t whole = count / kLanes * kLanes;
    for (int64_t j = 0; j < whole; j += kLanes)
        store(into + j, join(load(into + j), exp2(load(logits + j) - reference)));
    if (whole == count) return;
    const Vec before = load(into + whole);
    const Vec joined = join(before, exp2(load(logits + whole) - reference));
    store(into + whole, first_lanes(count - whole) ? joined : before);
}

}  // namespace

void softmax_gradient(float* logits, float* d_p, int64_t count, int64_t end, float lse, float d) {
    for (int64_t j = 0; j < padded(end); j += kLanes) {
        const IntVec seen = first_lanes(count - j);
        const Vec p = seen ? exp2(load(logits + j) - lse) : 0;
        store(logits + j, p);
        store(d_p + j, seen ? p * (load(d_p + j) - d) : 0);
    }
}

void cap_row(float* values, int64_t count, float cap) {
    if (cap == 0) return;
    const int64_t whole = count / kLanes * kLanes;
    for (int64_t j = 0; j < whole; j += kLanes) store(values + j, cap * tanh(load(values + j)));
    if (whole == count) return;
    const Vec before = load(values + whole);
    store(values + whole, first_lanes(count - whole) ? cap * tanh(before) : before);
}

SoftmaxStep softmax_step(float* logits, int64_t count, OnlineSum& state) {
    const float factor = raise_reference(logits, count, state.reference);
    const float sum = lane_sum(exp2_and_sums(logits, count, finite_reference(state)));
    add_sum(state, factor, sum);
    return {sum, factor};
}

void softmax_steps(float* logits, int64_t stride, int64_t rows, const int64_t* hidden,
                   const int64_t* seen, OnlineSum* states, float* factor) {
    std::array<Vec, kBatch> sums;
    for (int64_t r = 0; r < rows; ++r)
        factor[r] = raise_reference(logits + r * stride + hidden[r], seen[r] - hidden[r],
                                    states[r].reference);
    for (int64_t r = 0; r < rows; ++r)
        sums[static_cast<size_t>(r)] = exp2_and_sums(
            logits + r * stride + hidden[r], seen[r] - hidden[r], finite_reference(states[r]));
    for (int64_t r = 0; r < rows; ++r)
        add_sum(states[r], factor[r], lane_sum(sums[static_cast<size_t>(r)]));
}

float log_sum(const OnlineSum& state) {
    return static_cast<float>(kLn2 * (double{state.reference} + std::log2(state.sum)));
}

void exp2_row(float* logits, int64_t count, float reference) {
    exp2_and_sums(logits, count, reference);
}

void add_exp2(const float* logits, int64_t count, float reference, float* sum) {
    join_exp2(logits, count, reference, sum, [](Vec a, Vec b) { return a + b; });
}

void keep_larger_exp2(const float* logits, int64_t count, float reference, float* largest) {
    join_exp2(logits, count, reference, largest,
              [](Vec a, Vec b) { return is_nan(a) ? a : max(a, b); });
}

void exp2_difference(const float* logits, const float* from, int64_t count, int64_t end,
                     float reference, float* difference) {
    for (int64_t j = 0; j < padded(end); j += kLanes) {
        const Vec x = exp2(load(logits + j) - reference) - load(from + j);
        store(difference + j, first_lanes(count - j) ? x : 0);
    }
}

float exp2(float x) { return exp2(broadcast(x))[0]; }

float max_or_nan(const float* values, int64_t count) {
    const int64_t whole = count / kLanes * kLanes;
    Vec largest = first_lanes(count - whole) ? load(values + whole) : -kInfinity;
    IntVec nan = is_nan(largest);
    for (int64_t j = 0; j < whole; j += kLanes) {
        const Vec x = load(values + j);
        largest = max(x, largest);
        nan |= is_nan(x);
    }
    return any(nan) ? std::numeric_limits<float>::quiet_NaN() : lane_max(largest);
}

}  // namespace msa::cpu
