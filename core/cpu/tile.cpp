// SPDX-License-Identifier: MIT
#include "core/cpu/tile.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

namespace msa::cpu {
namespace {

using Vec [[gnu::vector_size(4 * kLanes)]] = float;
using IntVec [[gnu::vector_size(4 * kLanes)]] = int32_t;
using UintVec [[gnu::vector_size(4 * kLanes)]] = uint32_t;

Vec load(const float* from) {
    Vec v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

void store(float* to, Vec v) { std::memcpy(to, &v, sizeof v); }

Vec broadcast(float x) { return Vec{} + x; }

/// True in the first `count` lanes.
IntVec first_lanes(int64_t count) {
    IntVec lane;
    for (int32_t i = 0; i < kLanes; ++i) lane[i] = i;
    return lane < static_cast<int32_t>(count);
}

/// Exchanges the blocks of Step lanes off the diagonal: lane l of b with lane l + Step of a.
template <int Step, int... Lane>
void exchange(Vec& a, Vec& b, std::integer_sequence<int, Lane...>) {
    const Vec upper = __builtin_shufflevector(a, b, (Lane & Step ? kLanes + Lane - Step : Lane)...);
    b = __builtin_shufflevector(a, b, (Lane & Step ? kLanes + Lane : Lane + Step)...);
    a = upper;
}

/// Transposes kLanes x kLanes floats: blocks of 1 lane, of 2, of 4 ...
template <int Step = 1>
void transpose(Vec (&v)[kLanes]) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i)
        if ((i & Step) == 0)
            exchange<Step>(v[i], v[i + Step], std::make_integer_sequence<int, kLanes>{});
    if constexpr (Step < kLanes / 2) transpose<2 * Step>(v);
}

/// Rows x kPanel sums over t in [0, depth) stay in registers; `finish(row, half, sum)` takes them.
/// Rows of a lie a_stride floats apart; transposed, its columns do.
template <int Rows, bool Transposed = false, typename Finish>
void product(const float* a, int64_t a_stride, const float* panel, int64_t depth, Finish finish) {
    Vec sum[Rows][2] = {};
    for (int64_t t = 0; t < depth; ++t) {
        const Vec b0 = load(panel + t * kPanel), b1 = load(panel + t * kPanel + kLanes);
#pragma GCC unroll 6
        for (int row = 0; row < Rows; ++row) {
            const float a_t = Transposed ? a[t * a_stride + row] : a[row * a_stride + t];
            sum[row][0] += a_t * b0;
            sum[row][1] += a_t * b1;
        }
    }
#pragma GCC unroll 6
    for (int row = 0; row < Rows; ++row) {
        finish(row, 0, sum[row][0]);
        finish(row, 1, sum[row][1]);
    }
}

/// Calls f with the number of rows, 1 .. kStrip, as a compile-time constant.
template <typename F>
void with_rows(int64_t rows, F f) {
    static_assert(kStrip == 6);
    switch (rows) {
        case 1: return f(std::integral_constant<int, 1>{});
        case 2: return f(std::integral_constant<int, 2>{});
        case 3: return f(std::integral_constant<int, 3>{});
        case 4: return f(std::integral_constant<int, 4>{});
        case 5: return f(std::integral_constant<int, 5>{});
        default: return f(std::integral_constant<int, 6>{});
    }
}

/// x = n + f with |f| <= 1/2, and the Taylor series of 2^f to f^7, whose remainder is below
/// (ln2 / 2)^8 / 8! < 6e-9: a twentieth of an ulp, so rounding alone decides the error. n wraps
/// around where x is far below what counts.
Vec exp2(Vec x) {
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const Vec shifted = x + kRound;
    const Vec f = x - (shifted - kRound);
    Vec y = broadcast(1.5252734e-5f);
    y = y * f + 1.5403530e-4f;
    y = y * f + 1.3333558e-3f;
    y = y * f + 9.6181291e-3f;
    y = y * f + 5.5504109e-2f;
    y = y * f + 2.4022651e-1f;
    y = y * f + 6.9314718e-1f;
    y = y * f + 1.0f;
    const UintVec n = std::bit_cast<UintVec>(shifted) - std::bit_cast<uint32_t>(kRound);
    y *= std::bit_cast<Vec>((n + 127) << 23);
    return x < -125.0f ? Vec{} : y;
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

float lane_max(Vec v) {
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane)
            v[lane] = v[lane] > v[lane + half] ? v[lane] : v[lane + half];
    return v[0];
}

// NOLINTNEXTLINE(misc-redundant-expression): a NaN alone differs from itself
IntVec is_nan(Vec x) { return x != x; }

bool any(IntVec mask) {
    int32_t bits = 0;
    for (int lane = 0; lane < kLanes; ++lane) bits |= mask[lane];
    return bits != 0;
}

float lane_sum(Vec v) {
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int lane = 0; lane < half; ++lane) v[lane] += v[lane + half];
    return v[0];
}

/// logits = exp2(logits - reference) in place; returns their sum.
float exp2_and_sum(float* logits, int64_t count, float reference) {
    const int64_t whole = count / kLanes * kLanes;
    Vec sum{};
    for (int64_t j = 0; j < whole; j += kLanes) {
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
    return lane_sum(sum);
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

/// kLanes rows of width floats become kLanes columns of a panel.
void pack_lanes(const float* rows, int64_t stride, int64_t width, float* panel) {
    int64_t d = 0;
    for (; d + kLanes <= width; d += kLanes) {
        Vec v[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) v[i] = load(rows + i * stride + d);
        transpose(v);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; ++i) store(panel + (d + i) * kPanel, v[i]);
    }
    for (; d < width; ++d)
        for (int i = 0; i < kLanes; ++i) panel[d * kPanel + i] = rows[i * stride + d];
}

/// Are the values of the keys [first, last) finite?
bool finite(Panels v, int64_t first, int64_t last) {
    for (int64_t column = 0; column < v.columns; column += kPanel) {
        const float* panel = v.data + column * v.depth;
        for (const float* x = panel + first * kPanel; x < panel + last * kPanel; ++x)
            if (!std::isfinite(*x)) return false;
    }
    return true;
}

}  // namespace

void pack_queries(View<const float, 3> q, QueryRange queries, int64_t first_head, int64_t heads,
                  float factor, float* rows) {
    const int64_t floats = heads * q.extent(2);
    for (int64_t i = queries.begin; i < queries.end; ++i, rows += floats)
        std::transform(q[i][first_head].data(), q[i][first_head].data() + floats, rows,
                       [=](float x) { return factor * x; });
}

Panels pack_keys(const float* rows, int64_t stride, int64_t count, int64_t width, float* panels) {
    for (int64_t first = 0; first < count; first += kPanel) {
        const int64_t columns = std::min(kPanel, count - first);
        float* panel = panels + first * width;
        if (columns < kPanel) std::fill_n(panel, width * kPanel, 0.0f);
        int64_t j = 0;
        for (; j + kLanes <= columns; j += kLanes)
            pack_lanes(rows + (first + j) * stride, stride, width, panel + j);
        for (; j < columns; ++j)
            for (int64_t d = 0; d < width; ++d)
                panel[d * kPanel + j] = rows[(first + j) * stride + d];
    }
    return {panels, width, count};
}

Panels pack_values(const float* rows, int64_t stride, int64_t count, int64_t width, float* panels) {
    for (int64_t first = 0; first < width; first += kPanel) {
        const int64_t columns = std::min(kPanel, width - first);
        float* panel = panels + first * count;
        for (int64_t j = 0; j < count; ++j) {
            std::copy_n(rows + j * stride + first, columns, panel + j * kPanel);
            std::fill_n(panel + j * kPanel + columns, kPanel - columns, 0.0f);
        }
    }
    return {panels, count, width};
}

void multiply(Strip a, Panels b, float* c, int64_t c_stride) {
    with_rows(a.rows, [=](auto rows) {
        for (int64_t column = 0; column < b.columns; column += kPanel)
            product<rows()>(a.data, a.stride, b.data + column * b.depth, b.depth,
                            [&](int64_t row, int half, Vec sum) {
                                store(c + row * c_stride + column + half * kLanes, sum);
                            });
    });
}

void multiply_add(Strip a, Panels b, int64_t first, int64_t last, const float* factor, float* c,
                  int64_t c_stride) {
    with_rows(a.rows, [=](auto rows) {
        for (int64_t column = 0; column < b.columns; column += kPanel)
            product<rows()>(a.data + first, a.stride, b.data + column * b.depth + first * kPanel,
                            last - first, [&](int64_t row, int half, Vec sum) {
                                float* at = c + row * c_stride + column + half * kLanes;
                                store(at, factor[row] * load(at) + sum);
                            });
    });
}

void add_values(float* p, int64_t p_stride, int64_t rows, Panels v, const int64_t* visible,
                const float* factor, float* c, int64_t c_stride, const int64_t* hidden) {
    constexpr std::array<int64_t, kStrip> kNone{};
    if (hidden == nullptr) hidden = kNone.data();
    const auto [least, most] = std::minmax_element(visible, visible + rows);
    const auto [first, last_first] = std::minmax_element(hidden, hidden + rows);
    if (finite(v, *first, *last_first) && finite(v, *least, *most)) {
        // A weight of 0 adds exactly nothing: together, the rows sum as they do alone.
        for (int64_t row = 0; row < rows; ++row) {
            float* weights = p + row * p_stride;
            std::fill(weights + *first, weights + hidden[row], 0.0f);
            std::fill(weights + visible[row], weights + *most, 0.0f);
        }
        multiply_add({p, p_stride, rows}, v, *first, *most, factor, c, c_stride);
        return;
    }
    for (int64_t row = 0; row < rows; ++row)
        multiply_add({p + row * p_stride, p_stride, 1}, v, hidden[row], visible[row], factor + row,
                     c + row * c_stride, c_stride);
}

void add_transposed(const float* a, int64_t a_stride, int64_t columns, Panels b,
                    const int64_t* visible, float* c, int64_t c_stride) {
    // A weight of 0 adds exactly nothing, unless it meets NaN or infinity.
    const auto first_row = [=](int64_t j) {
        return std::upper_bound(visible, visible + b.depth, j) - visible;
    };
    const bool clean = finite(b, 0, first_row(columns - 1));
    const int64_t most = clean ? kStrip : 1;
    for (int64_t j = 0; j < columns; j += most) {
        const int64_t first = clean ? 0 : first_row(j);
        with_rows(std::min(most, columns - j), [=](auto rows) {
            for (int64_t column = 0; column < b.columns; column += kPanel)
                product<rows(), true>(
                    a + first * a_stride + j, a_stride, b.data + column * b.depth + first * kPanel,
                    b.depth - first, [&](int64_t row, int half, Vec sum) {
                        float* at = c + (j + row) * c_stride + column + half * kLanes;
                        store(at, load(at) + sum);
                    });
        });
    }
}

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
    const int64_t whole = count / kLanes * kLanes;
    const IntVec rest = first_lanes(count - whole);
    Vec largest = rest ? load(logits + whole) : -kInfinity;
    for (int64_t j = 0; j < whole; j += kLanes) largest = max(load(logits + j), largest);
    SoftmaxStep step{0, 1};
    constexpr float kSlack = 8;
    if (const float most = lane_max(largest); most > state.reference + kSlack) {
        step.factor = exp2(state.reference - most);
        state.reference = most;
    }
    const float reference = state.reference == -kInfinity ? 0 : state.reference;
    step.sum = exp2_and_sum(logits, count, reference);
    state.sum = state.sum * double{step.factor} + double{step.sum};
    return step;
}

float log_sum(const OnlineSum& state) {
    return static_cast<float>(kLn2 * (double{state.reference} + std::log2(state.sum)));
}

void exp2_row(float* logits, int64_t count, float reference) {
    exp2_and_sum(logits, count, reference);
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
