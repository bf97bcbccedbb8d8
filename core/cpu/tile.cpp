// SPDX-License-Identifier: MIT
#include "core/cpu/tile.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>
#include <utility>

#include "core/cpu/vector.h"

namespace msa::cpu {
namespace {

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
[[gnu::always_inline]] inline void product(const float* a, int64_t a_stride, const float* panel,
                                           int64_t depth, Finish finish) {
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

/// Calls f with the number of rows, at most kStrip, as a compile-time constant.
template <typename F>
void with_rows(int64_t rows, F f) {
    static_assert(kStrip == 6);
    switch (rows) {
        case 0: return;
        case 1: return f(std::integral_constant<int, 1>{});
        case 2: return f(std::integral_constant<int, 2>{});
        case 3: return f(std::integral_constant<int, 3>{});
        case 4: return f(std::integral_constant<int, 4>{});
        case 5: return f(std::integral_constant<int, 5>{});
        default: return f(std::integral_constant<int, 6>{});
    }
}

/// Calls f(rows, first row) for the products that `rows` rows are cut into: kStrip rows, as a
/// compile-time constant, and at last what is left.
template <typename F>
void for_each_product(int64_t rows, F f) {
    int64_t row = 0;
    for (; row + kStrip <= rows; row += kStrip) f(std::integral_constant<int, kStrip>{}, row);
    with_rows(rows - row, [&](auto rest) { f(rest, row); });
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

/// Whether all values of the keys [first, last) are finite.
bool finite(Panels v, int64_t first, int64_t last) {
    for (int64_t column = 0; column < v.columns; column += kPanel) {
        const float* panel = v.data + column * v.depth;
        for (const float* x = panel + first * kPanel; x < panel + last * kPanel; ++x)
            if (!std::isfinite(*x)) return false;
    }
    return true;
}

/// Keys [first, last) of a step, and whether all rows of a product can take them at once.
struct KeyRun {
    int64_t first, last;
    bool joint;
};

/// The keys that the rows of one product take together, each of those that it does not see with a
/// weight of 0, which adds exactly nothing: so the rows sum as they do alone. Not where it would
/// meet NaN or infinity.
KeyRun joint_run(float* p, int64_t p_stride, int64_t rows, Panels v, const int64_t* visible,
                 const int64_t* hidden) {
    int64_t least = *visible, most = *visible, first = *hidden, last_first = *hidden;
    for (int64_t row = 1; row < rows; ++row) {
        least = std::min(least, visible[row]);
        most = std::max(most, visible[row]);
        first = std::min(first, hidden[row]);
        last_first = std::max(last_first, hidden[row]);
    }
    if (least == most && first == last_first) return {first, most, true};
    if (!finite(v, first, last_first) || !finite(v, least, most)) return {first, most, false};
    for (int64_t row = 0; row < rows; ++row) {
        float* weights = p + row * p_stride;
        std::fill(weights + first, weights + hidden[row], 0.0f);
        std::fill(weights + visible[row], weights + most, 0.0f);
    }
    return {first, most, true};
}

/// One panel of c[row] = factor[row] c[row] + a b over the depths of `run` alone. What lies outside
/// of it is not read, so NaN there does not matter.
template <int Rows>
void add_panel(Strip a, Panels b, int64_t column, KeyRun run, const float* factor, float* c,
               int64_t c_stride) {
    float* const to = c + column;
    product<Rows>(a.data + run.first, a.stride, b.data + column * b.depth + run.first * kPanel,
                  run.last - run.first, [=](int64_t row, int half, Vec sum) {
                      float* const at = to + row * c_stride + half * kLanes;
                      store(at, factor[row] * load(at) + sum);
                  });
}

}  // namespace

void pack_queries(View<const float, 3> q, QueryRange queries, int64_t first_head, int64_t heads,
                  float factor, float* rows) {
    const int64_t floats = heads * q.extent(2);
    for (int64_t i = queries.begin; i < queries.end; ++i, rows += floats)
        std::transform(q[i][first_head].data(), q[i][first_head].data() + floats, rows,
                       [=](float x) { return factor * x; });
}

Panels pack_keys(const KeyTokens<float>& rows, int64_t head, int64_t first, int64_t count,
                 float* panels) {
    const int64_t width = rows.width(), stride = rows.token_stride();
    for (int64_t start = 0; start < count; start += kPanel) {
        const int64_t columns = std::min(kPanel, count - start);
        float* panel = panels + start * width;
        if (columns < kPanel) std::fill_n(panel, width * kPanel, 0.0f);
        for (int64_t j = 0; j < columns;) {
            const int64_t token = first + start + j;
            const float* from = rows.at(token, head);
            const int64_t end = j + std::min(rows.run(token), columns - j);
            for (; j + kLanes <= end; j += kLanes, from += kLanes * stride)
                pack_lanes(from, stride, width, panel + j);
            for (; j < end; ++j, from += stride)
                for (int64_t d = 0; d < width; ++d) panel[d * kPanel + j] = from[d];
        }
    }
    return {panels, width, count};
}

Panels pack_values(const KeyTokens<float>& rows, int64_t head, int64_t first, int64_t count,
                   float* panels) {
    const int64_t width = rows.width(), stride = rows.token_stride();
    for (int64_t start = 0; start < count;) {
        const float* const from = rows.at(first + start, head);
        const int64_t run = std::min(rows.run(first + start), count - start);
        for (int64_t column = 0; column < width; column += kPanel) {
            const int64_t columns = std::min(kPanel, width - column);
            float* panel = panels + column * count + start * kPanel;
            for (int64_t j = 0; j < run; ++j, panel += kPanel) {
                const float* const row = from + j * stride + column;
                if (columns == kPanel) {
                    for (int64_t d = 0; d < kPanel; d += kLanes) store(panel + d, load(row + d));
                    continue;
                }
                std::copy_n(row, columns, panel);
                std::fill_n(panel + columns, kPanel - columns, 0.0f);
            }
        }
        start += run;
    }
    return {panels, count, width};
}

void multiply(Strip a, Panels b, float* c, int64_t c_stride) {
    for (int64_t column = 0; column < b.columns; column += kPanel) {
        const float* const panel = b.data + column * b.depth;
        for_each_product(a.rows, [&](auto rows, int64_t first_row) {
            float* const to = c + first_row * c_stride + column;
            product<rows()>(a.data + first_row * a.stride, a.stride, panel, b.depth,
                            [=](int64_t row, int half, Vec sum) {
                                store(to + row * c_stride + half * kLanes, sum);
                            });
        });
    }
}

void add_values(float* p, int64_t p_stride, int64_t rows, Panels v, const int64_t* visible,
                const float* factor, float* c, int64_t c_stride, const int64_t* hidden) {
    static constexpr std::array<int64_t, kBatch> kNone{};
    if (hidden == nullptr) hidden = kNone.data();
    std::array<KeyRun, kBatch / kStrip> runs;
    for (int64_t row = 0; row < rows; row += kStrip) {
        const int64_t count = std::min(kStrip, rows - row);
        KeyRun& run = runs[static_cast<size_t>(row / kStrip)];
        run = joint_run(p + row * p_stride, p_stride, count, v, visible + row, hidden + row);
        for (int64_t r = row; !run.joint && r < row + count; ++r)
            for (int64_t column = 0; column < v.columns; column += kPanel)
                add_panel<1>({p + r * p_stride, p_stride, 1}, v, column,
                             {hidden[r], visible[r], false}, factor + r, c + r * c_stride,
                             c_stride);
    }
    for (int64_t column = 0; column < v.columns; column += kPanel)
        for_each_product(rows, [&](auto count, int64_t row) {
            const KeyRun& run = runs[static_cast<size_t>(row / kStrip)];
            if (run.joint)
                add_panel<count()>({p + row * p_stride, p_stride, count}, v, column, run,
                                   factor + row, c + row * c_stride, c_stride);
        });
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

}  // namespace msa::cpu
