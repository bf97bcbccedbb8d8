// SPDX-License-Identifier: MIT
// Every operation of core/train/ops.h, on the host and on a GPU, against sums in double.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/half.h"
#include "core/random.h"
#include "core/tolerance.h"
#include "core/train/buffer.h"
#include "core/train/ops.h"
#include "gpu/train/cuda_ops.h"
#include "tests/support/subjects.h"

namespace msa::train {
namespace {

using test::Subject;
using Values = std::vector<float>;
using Doubles = std::vector<double>;

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// Values in memory of a backend, in one element.
class Stored {
public:
    Stored(Backend& backend, Element element, const Values& values)
        : backend_(backend),
          list_(backend, element, {std::max<int64_t>(1, std::ssize(values))}),
          size_(std::ssize(values)) {
        std::vector<bf16> narrow(values.begin(), values.end());
        const void* const from =
            element == Element::bf16 ? static_cast<const void*>(narrow.data()) : values.data();
        backend.copy(list_.out().data(), backend.space(), from, Space::host,
                     size_ * element_bytes(element));
    }
    template <int Rank>
    Out<Rank> view(const Shape<Rank>& shape) {
        MSA_CHECK(element_count(shape) == size_);
        return {list_.out().data(), shape, element(), backend_.space()};
    }
    template <int Rank>
    View<float, Rank> floats(const Shape<Rank>& shape) {
        return view<Rank>(shape).template as<float>();
    }
    View<float, 1> floats() { return floats<1>({size_}); }
    Element element() const { return list_.in().element(); }
    Values get() {
        Values values(at(size_));
        std::vector<bf16> narrow(values.size());
        void* const to =
            element() == Element::bf16 ? static_cast<void*>(narrow.data()) : values.data();
        backend_.copy(to, Space::host, list_.out().data(), backend_.space(),
                      size_ * element_bytes(element()));
        if (element() == Element::bf16)
            for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(narrow[i]);
        return values;
    }

private:
    Backend& backend_;
    Buffer<1> list_;
    int64_t size_;
};

/// A right answer, and what its terms add up to without their signs.
struct Sums {
    explicit Sums(int64_t size) : values(at(size)), magnitudes(at(size)) {}
    void add(int64_t i, double term) {
        values[at(i)] += term;
        magnitudes[at(i)] += std::fabs(term);
    }
    Doubles values, magnitudes;
};

class Operations : public testing::TestWithParam<Subject> {
protected:
    void SetUp() override {
        MSA_SKIP_UNLESS_USABLE(GetParam().backend);
        std::unique_ptr<Backend> backend = make_backend(GetParam().backend, {.threads = 2});
        ops_ = GetParam().backend == "cuda" ? make_cuda_ops(std::move(backend), GetParam().element)
                                            : make_cpu_ops(std::move(backend));
    }

    /// Values that the operations' element holds exactly.
    Values draw(uint64_t seed, int64_t count) const {
        Values values(at(count));
        for (int64_t i = 0; i < count; ++i) {
            const auto value = static_cast<float>(random_normal(mix(seed, i)));
            values[at(i)] = element() == Element::bf16 ? static_cast<float>(bf16(value)) : value;
        }
        return values;
    }
    Stored stored(const Values& values) { return {ops_->backend(), element(), values}; }
    Stored wide(const Values& values) { return {ops_->backend(), Element::f32, values}; }
    Tensor<int32_t, 1> list(const std::vector<int32_t>& values) {
        return ops_->backend().upload(View<const int32_t, 1>(values.data(), {std::ssize(values)}));
    }
    Element element() const { return GetParam().element; }

    /// `roundings` of float arithmetic, then that of the element it is stored in.
    static void expect(Stored& got, const Sums& want, double roundings) {
        const Values values = got.get();
        ASSERT_EQ(values.size(), want.values.size());
        for (size_t i = 0; i < values.size(); ++i)
            ASSERT_NEAR(double{values[i]}, want.values[i],
                        sum_bound(roundings, want.magnitudes[i], got.element()) + 1e-30)
                << i;
    }

    std::unique_ptr<Ops> ops_;
};

INSTANTIATE_TEST_SUITE_P(All, Operations,
                         testing::Values(Subject{"cpu", Element::f32},
                                         Subject{"cuda", Element::f32},
                                         Subject{"cuda", Element::bf16}),
                         test::subject_name);

/// Of a product: n tokens, from width b to width a.
struct ProductSize {
    int64_t n, a, b;
};
constexpr ProductSize kProducts[] = {{1, 1, 1},       {91, 29, 32},    {64, 96, 48}, {130, 16, 40},
                                     {300, 256, 384}, {2048, 64, 384}, {77, 33, 17}};

TEST_P(Operations, Linear) {
    for (const auto& [n, a, b] : kProducts) {
        const Values x = draw(1, n * b), w = draw(2, a * b), before = draw(3, n * a);
        for (Sum sum : {Sum::set, Sum::add}) {
            Sums want(n * a);
            for (int64_t i = 0; i < n; ++i)
                for (int64_t j = 0; j < a; ++j) {
                    if (sum == Sum::add) want.add(i * a + j, before[at(i * a + j)]);
                    for (int64_t c = 0; c < b; ++c)
                        want.add(i * a + j, double{x[at(i * b + c)]} * w[at(j * b + c)]);
                }
            Stored left = stored(x), right = stored(w), to = stored(before);
            ops_->linear(left.view<2>({n, b}), right.view<2>({a, b}), to.view<2>({n, a}), sum);
            expect(to, want, static_cast<double>(b) + 2);
        }
    }
}

TEST_P(Operations, GradientOfLinearInItsInput) {
    for (const auto& [n, a, b] : kProducts) {
        const Values d_y = draw(1, n * a), w = draw(2, a * b), before = draw(3, n * b);
        for (Sum sum : {Sum::set, Sum::add}) {
            Sums want(n * b);
            for (int64_t i = 0; i < n; ++i)
                for (int64_t c = 0; c < b; ++c) {
                    if (sum == Sum::add) want.add(i * b + c, before[at(i * b + c)]);
                    for (int64_t j = 0; j < a; ++j)
                        want.add(i * b + c, double{d_y[at(i * a + j)]} * w[at(j * b + c)]);
                }
            Stored left = stored(d_y), right = stored(w), to = stored(before);
            ops_->linear_grad_input(left.view<2>({n, a}), right.view<2>({a, b}), to.view<2>({n, b}),
                                    sum);
            expect(to, want, static_cast<double>(a) + 2);
        }
    }
}

TEST_P(Operations, GradientOfLinearInItsWeight) {
    for (const auto& [n, a, b] : kProducts) {
        const Values d_y = draw(1, n * a), x = draw(2, n * b), before = draw(3, a * b);
        Sums want(a * b);
        for (int64_t j = 0; j < a; ++j)
            for (int64_t c = 0; c < b; ++c) {
                want.add(j * b + c, before[at(j * b + c)]);
                for (int64_t i = 0; i < n; ++i)
                    want.add(j * b + c, double{d_y[at(i * a + j)]} * x[at(i * b + c)]);
            }
        Stored left = stored(d_y), right = stored(x), to = wide(before);
        ops_->linear_grad_weight(left.view<2>({n, a}), right.view<2>({n, b}), to.floats<2>({a, b}));
        expect(to, want, static_cast<double>(n) + 2);
    }
}

/// Rows and widths of a norm: vectors of eight or not, fewer than a warp's, and many.
constexpr int64_t kNorms[][2] = {{5, 1},     {3, 29},    {1000, 64}, {33, 128},
                                 {700, 384}, {65, 1408}, {9, 1030},  {4000, 16}};

TEST_P(Operations, RmsNormAndItsGradient) {
    for (const auto& [rows, width] : kNorms) {
        const Values x = draw(1, rows * width), w = draw(2, width), d_y = draw(3, rows * width),
                     before = draw(4, rows * width), d_w = draw(5, width);
        Sums y(rows * width), d_weight(width);
        for (int64_t c = 0; c < width; ++c) d_weight.add(c, d_w[at(c)]);
        Stored there = stored(x), weight = wide(w), d_to = stored(d_y), to = stored(before);
        Doubles d_x(at(rows * width)), size(at(rows * width));
        for (int64_t i = 0; i < rows; ++i) {
            const auto of = [&, first = i * width](const Values& all, int64_t c) {
                return double{all[at(first + c)]};
            };
            double squares = 0, along = 0, magnitude = 0;
            for (int64_t c = 0; c < width; ++c) squares += std::pow(of(x, c), 2);
            const double inverse =
                1 / std::sqrt(squares / static_cast<double>(width) + Ops::kNormEpsilon);
            for (int64_t c = 0; c < width; ++c) {
                const double term = of(d_y, c) * w[at(c)] * of(x, c) * inverse;
                along += term;
                magnitude += std::fabs(term);
            }
            along /= static_cast<double>(width);
            magnitude /= static_cast<double>(width);
            for (int64_t c = 0; c < width; ++c) {
                const double unit = of(x, c) * inverse, g = of(d_y, c) * w[at(c)];
                y.add(i * width + c, unit * w[at(c)]);
                d_weight.add(c, of(d_y, c) * unit);
                d_x[at(i * width + c)] = (g - unit * along) * inverse;
                size[at(i * width + c)] = (std::fabs(g) + std::fabs(unit) * magnitude) * inverse;
            }
        }
        // The root of a mean of squares: as many roundings as a sum of them.
        const auto roundings = static_cast<double>(width) + 8;
        const View<const float, 1> w_view = weight.floats();
        ops_->rms_norm(there.view<2>({rows, width}), w_view, to.view<2>({rows, width}));
        expect(to, y, roundings);
        for (Sum sum : {Sum::set, Sum::add}) {
            Sums want(rows * width);
            want.values = d_x;
            want.magnitudes = size;
            if (sum == Sum::add)
                for (int64_t i = 0; i < rows * width; ++i) want.add(i, before[at(i)]);
            Stored d_from = stored(before), d_list = wide(d_w);
            ops_->rms_norm_grad(there.view<2>({rows, width}), w_view, d_to.view<2>({rows, width}),
                                d_from.view<2>({rows, width}), d_list.floats(), sum);
            expect(d_from, want, 2 * roundings);
            expect(d_list, d_weight, static_cast<double>(rows) + roundings);
        }
        // In place.
        Stored d_list = wide(d_w);
        Sums want(rows * width);
        want.values = d_x;
        want.magnitudes = size;
        ops_->rms_norm_grad(there.view<2>({rows, width}), w_view, d_to.view<2>({rows, width}),
                            d_to.view<2>({rows, width}), d_list.floats(), Sum::set);
        expect(d_to, want, 2 * roundings);
        expect(d_list, d_weight, static_cast<double>(rows) + roundings);
    }
}

TEST_P(Operations, Rotate) {
    constexpr int64_t kShapes[][4] = {// tokens, heads, head dim, pairs
                                      {7, 3, 64, 16},
                                      {5, 1, 16, 4},
                                      {9, 2, 20, 8},
                                      {4, 2, 6, 3}};
    for (const auto& [n, heads, dims, half] : kShapes)
        for (bool backward : {false, true}) {
            constexpr int64_t kPositions = 11;
            const Values before = draw(1, n * heads * dims);
            Values angles(at(kPositions * half * 2));
            for (int64_t i = 0; i < kPositions * half; ++i) {
                angles[at(2 * i)] = static_cast<float>(std::cos(0.1 * static_cast<double>(i)));
                angles[at(2 * i + 1)] = static_cast<float>(std::sin(0.1 * static_cast<double>(i)));
            }
            std::vector<int32_t> positions;
            Sums want(n * heads * dims);
            for (int64_t i = 0; i < n; ++i) {
                positions.push_back(static_cast<int32_t>(mix(2, i) % kPositions));
                for (int64_t h = 0; h < heads; ++h)
                    for (int64_t c = 0; c < dims; ++c) {
                        const int64_t first = (i * heads + h) * dims;
                        if (c >= 2 * half) {
                            want.add(first + c, before[at(first + c)]);
                            continue;
                        }
                        const int64_t pair = c % half, angle = (positions.back() * half + pair) * 2;
                        const bool low = c < half;
                        const double sine = angles[at(angle + 1)] * (low == backward ? 1 : -1);
                        want.add(first + c, double{before[at(first + c)]} * angles[at(angle)]);
                        want.add(first + c, before[at(first + (low ? c + half : c - half))] * sine);
                    }
            }
            Stored there = stored(before), table = wide(angles);
            const Tensor<int32_t, 1> at_positions = list(positions);
            ops_->rotate(there.view<3>({n, heads, dims}), at_positions,
                         table.floats<3>({kPositions, half, 2}), backward);
            expect(there, want, 3);
        }
}

TEST_P(Operations, SwigluAndItsGradient) {
    for (const auto& [n, width] : {std::pair<int64_t, int64_t>{9, 64}, {3, 29}, {40, 1024}}) {
        const Values gate = draw(1, n * width), up = draw(2, n * width), d_y = draw(3, n * width);
        Sums y(n * width), d_gate(n * width), d_up(n * width);
        for (int64_t i = 0; i < n * width; ++i) {
            const double g = gate[at(i)], s = 1 / (1 + std::exp(-g));
            y.add(i, g * s * up[at(i)]);
            d_gate.add(i, double{d_y[at(i)]} * up[at(i)] * s);
            d_gate.add(i, double{d_y[at(i)]} * up[at(i)] * s * g * (1 - s));
            d_up.add(i, d_y[at(i)] * g * s);
        }
        const Shape<2> shape{n, width};
        Stored g = stored(gate), u = stored(up), d = stored(d_y), to = stored(gate),
               d_g = stored(gate), d_u = stored(gate);
        ops_->swiglu(g.view<2>(shape), u.view<2>(shape), to.view<2>(shape));
        ops_->swiglu_grad(g.view<2>(shape), u.view<2>(shape), d.view<2>(shape), d_g.view<2>(shape),
                          d_u.view<2>(shape));
        // An exp whose argument is off by a rounding of at most 5, and a few operations.
        constexpr double kRoundings = 2 * kExpRoundoffs + 12;
        expect(to, y, kRoundings);
        expect(d_g, d_gate, 2 * kRoundings);
        expect(d_u, d_up, kRoundings);
    }
}

TEST_P(Operations, EmbedAndItsGradient) {
    for (const auto& [n, vocabulary, width] :
         {std::array<int64_t, 3>{91, 29, 32}, {2500, 7, 20}, {3000, 256, 520}}) {
        std::vector<int32_t> tokens;
        for (int64_t i = 0; i < n; ++i)
            tokens.push_back(static_cast<int32_t>(mix(7, i) % static_cast<uint64_t>(vocabulary)));
        const Values table = draw(1, vocabulary * width), d_x = draw(2, n * width),
                     before = draw(3, vocabulary * width);
        Sums x(n * width), d_table(vocabulary * width);
        for (int64_t i = 0; i < vocabulary * width; ++i) d_table.add(i, before[at(i)]);
        for (int64_t i = 0; i < n; ++i)
            for (int64_t c = 0; c < width; ++c) {
                x.add(i * width + c, table[at(tokens[at(i)] * width + c)]);
                d_table.add(tokens[at(i)] * width + c, d_x[at(i * width + c)]);
            }
        const Tensor<int32_t, 1> there = list(tokens);
        Stored from = stored(table), to = stored(d_x), d_to = wide(before);
        ops_->embed_grad(there, to.view<2>({n, width}), d_to.floats<2>({vocabulary, width}));
        expect(d_to, d_table, static_cast<double>(n));
        ops_->embed(there, from.view<2>({vocabulary, width}), to.view<2>({n, width}));
        expect(to, x, 0);
    }
}

TEST_P(Operations, CrossEntropy) {
    for (const auto& [n, vocabulary] : {std::pair<int64_t, int64_t>{91, 29}, {20, 256}, {3, 1}}) {
        constexpr float kFactor = 0.125F;
        const Values logits = draw(1, n * vocabulary);
        std::vector<int32_t> targets;
        Sums losses(n), d(n * vocabulary);
        for (int64_t i = 0; i < n; ++i) {
            const bool none = i % 5 == 3;
            targets.push_back(
                none ? Ops::kNoTarget
                     : static_cast<int32_t>(mix(9, i) % static_cast<uint64_t>(vocabulary)));
            if (none) continue;
            double sum = 0;
            const auto logit = [&, i, width = vocabulary](int64_t v) {
                return double{logits[at(i * width + v)]};
            };
            for (int64_t v = 0; v < vocabulary; ++v) sum += std::exp(logit(v));
            losses.add(i, std::log(sum));
            losses.add(i, -logit(targets.back()));
            losses.magnitudes[at(i)] += 8;  // of the largest logit, which goes and comes back
            for (int64_t v = 0; v < vocabulary; ++v) {
                d.add(i * vocabulary + v, kFactor * std::exp(logit(v)) / sum);
                if (v == targets.back()) d.add(i * vocabulary + v, -kFactor);
            }
        }
        const Tensor<int32_t, 1> there = list(targets);
        Stored to = stored(logits), each = wide(Values(at(n), 7));
        const auto roundings = static_cast<double>(vocabulary) + 2 * kExpRoundoffs + 16;
        ops_->cross_entropy(to.view<2>({n, vocabulary}), there, each.floats(), kFactor, false);
        expect(each, losses, roundings);
        EXPECT_EQ(to.get(), logits);
        ops_->cross_entropy(to.view<2>({n, vocabulary}), there, each.floats(), kFactor, true);
        expect(each, losses, roundings);
        expect(to, d, 2 * roundings);
    }
}

TEST_P(Operations, CrossEntropyOfNanIsNan) {
    Values logits = draw(1, 3 * 40);
    logits[40 + 35] = std::numeric_limits<float>::quiet_NaN();
    const Tensor<int32_t, 1> targets = list({1, 2, 3});
    Stored to = stored(logits), each = wide(Values(3));
    ops_->cross_entropy(to.view<2>({3, 40}), targets, each.floats(), 1, true);
    const Values losses = each.get();
    EXPECT_TRUE(std::isfinite(losses[0]) && std::isnan(losses[1]) && std::isfinite(losses[2]));
    EXPECT_TRUE(std::isnan(to.get()[40]));
}

TEST_P(Operations, AddBetweenElements) {
    for (int64_t n : {1, 77, 4096})
        for (bool from_wide : {false, true})
            for (bool to_wide : {false, true})
                for (Sum sum : {Sum::set, Sum::add}) {
                    const Values x = draw(1, n), before = draw(2, n);
                    Sums want(n);
                    for (int64_t i = 0; i < n; ++i) {
                        want.add(i, -1.5 * double{x[at(i)]});
                        if (sum == Sum::add) want.add(i, before[at(i)]);
                    }
                    Stored from = from_wide ? wide(x) : stored(x),
                           to = to_wide ? wide(before) : stored(before);
                    ops_->add(from.view<1>({n}), -1.5F, to.view<1>({n}), sum);
                    expect(to, want, 2);
                }
}

TEST_P(Operations, RepeatAndSumHeads) {
    constexpr int64_t kTokens = 13, kHeads = 3, kDims = 20;
    const Values one = draw(1, kTokens * kDims), many = draw(2, kTokens * kHeads * kDims);
    Sums repeated(kTokens * kHeads * kDims), summed(kTokens * kDims);
    for (int64_t i = 0; i < kTokens; ++i)
        for (int64_t h = 0; h < kHeads; ++h)
            for (int64_t d = 0; d < kDims; ++d) {
                const int64_t place = (i * kHeads + h) * kDims + d;
                repeated.add(place, one[at(i * kDims + d)]);
                summed.add(i * kDims + d, many[at(place)]);
            }
    Stored narrow = stored(one), broad = stored(many);
    ops_->sum_heads(broad.view<3>({kTokens, kHeads, kDims}), narrow.view<2>({kTokens, kDims}));
    expect(narrow, summed, kHeads);
    Stored each = stored(one);
    ops_->repeat(each.view<2>({kTokens, kDims}), broad.view<3>({kTokens, kHeads, kDims}));
    expect(broad, repeated, 0);
}

TEST_P(Operations, RowsOfAList) {
    constexpr int64_t kAll = 12, kHeads = 2;
    const std::vector<int32_t> rows{7, 0, 11, 3};
    const int64_t some = std::ssize(rows);
    const Tensor<int32_t, 1> there = list(rows);
    for (int64_t dims : {1, 5, 32})
        for (bool floats : {false, true}) {
            const int64_t width = kHeads * dims;
            const Values all = draw(1, kAll * width), part = draw(2, some * width);
            Sums gathered(some * width), added(kAll * width);
            for (int64_t i = 0; i < kAll * width; ++i) added.add(i, all[at(i)]);
            for (int64_t i = 0; i < some; ++i)
                for (int64_t c = 0; c < width; ++c) {
                    gathered.add(i * width + c, all[at(rows[at(i)] * width + c)]);
                    added.add(rows[at(i)] * width + c, part[at(i * width + c)]);
                }
            Stored whole = floats ? wide(all) : stored(all),
                   to = floats ? wide(part) : stored(part),
                   from = floats ? wide(part) : stored(part);
            ops_->gather_rows(whole.view<3>({kAll, kHeads, dims}), there,
                              to.view<3>({some, kHeads, dims}));
            expect(to, gathered, 0);
            ops_->add_rows(from.view<3>({some, kHeads, dims}), there,
                           whole.view<3>({kAll, kHeads, dims}));
            expect(whole, added, 1);
        }
}

TEST_P(Operations, MergeAttention) {
    constexpr int64_t kAll = 9, kHeads = 3, kDims = 40;
    const std::vector<int32_t> rows{8, 2, 5};
    const int64_t some = std::ssize(rows);
    const Values whole = draw(1, kAll * kHeads * kDims), part = draw(2, some * kHeads * kDims);
    Values lse = draw(3, kAll * kHeads), part_lse = draw(4, some * kHeads);
    const float none = -std::numeric_limits<float>::infinity();
    lse[8 * kHeads] = none;                                 // the part alone
    part_lse[kHeads + 1] = none;                            // the whole alone
    lse[5 * kHeads + 2] = part_lse[2 * kHeads + 2] = none;  // neither
    Sums out(kAll * kHeads * kDims);
    Doubles both(lse.begin(), lse.end());
    std::vector<bool> listed(at(kAll * kHeads));
    for (int64_t i = 0; i < some; ++i)
        for (int64_t h = 0; h < kHeads; ++h) {
            const int64_t to = rows[at(i)] * kHeads + h, from = i * kHeads + h;
            const double own = std::exp(double{lse[at(to)]}),
                         other = std::exp(double{part_lse[at(from)]}), sum = own + other;
            listed[at(to)] = true;
            both[at(to)] = std::log(sum);
            for (int64_t d = 0; d < kDims && sum > 0; ++d) {
                out.add(to * kDims + d, whole[at(to * kDims + d)] * own / sum);
                out.add(to * kDims + d, part[at(from * kDims + d)] * other / sum);
            }
        }
    for (int64_t i = 0; i < kAll * kHeads * kDims; ++i)
        if (!listed[at(i / kDims)]) out.add(i, whole[at(i)]);
    const Tensor<int32_t, 1> there = list(rows);
    Stored to = stored(whole), from = stored(part), to_lse = wide(lse), from_lse = wide(part_lse);
    ops_->merge_attention(from.view<3>({some, kHeads, kDims}), from_lse.floats<2>({some, kHeads}),
                          there, to.view<3>({kAll, kHeads, kDims}),
                          to_lse.floats<2>({kAll, kHeads}));
    // Weights: exps of differences of lse of at most 16, which are off by as many roundings.
    expect(to, out, 2 * kExpRoundoffs + 64);
    const Values merged = to_lse.get();
    for (size_t i = 0; i < merged.size(); ++i) {
        if (both[i] == -HUGE_VAL)
            EXPECT_EQ(merged[i], none) << i;
        else
            EXPECT_NEAR(merged[i], both[i], gamma(2 * kExpRoundoffs + 64)) << i;
    }
}

TEST_P(Operations, ListsOfParameters) {
    const std::vector<int64_t> starts{0, 3, 3, 1000, 70000};
    const Values values = draw(1, starts.back());
    Stored there = wide(values);
    const std::vector<double> norms = ops_->squared_norms(there.floats(), starts);
    ASSERT_EQ(norms.size(), 4U);
    for (size_t part = 0; part < norms.size(); ++part) {
        double sum = 0;
        for (int64_t i = starts[part]; i < starts[part + 1]; ++i)
            sum += double{values[at(i)]} * values[at(i)];
        EXPECT_NEAR(norms[part], sum, 1e-11 * sum);  // sums in double
    }
    Doubles wide_values(values.begin(), values.end());
    const double sum = std::accumulate(wide_values.begin(), wide_values.end(), 0.0);
    const Tensor<double, 1> doubles =
        ops_->backend().upload(View<const double, 1>(wide_values.data(), {starts.back()}));
    EXPECT_NEAR(ops_->total(there.view<1>({starts.back()})), sum, 1e-9);
    EXPECT_NEAR(ops_->total(In<1>(doubles.view())), sum, 1e-9);
    ops_->clear(there.floats());
    EXPECT_EQ(there.get(), Values(values.size()));
}

/// AdamW::update, and every result rounded once more: the device's double may fuse operations.
TEST_P(Operations, AdamwIsTheUpdateOfTheHost) {
    constexpr int64_t kCount = 3001;
    const AdamW rule{.beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.1};
    Values weights = draw(1, kCount), gradient = draw(2, kCount), first = draw(3, kCount),
           second = draw(4, kCount);
    for (float& value : second) value *= value;
    Stored w = wide(weights), g = wide(gradient), m = wide(first), v = wide(second);
    ops_->adamw(rule, 3, 0.01, 0.25, w.floats(), g.floats(), m.floats(), v.floats());
    for (float& value : gradient) value *= 0.25F;
    rule.update(3, 0.01, weights, gradient, first, second);
    const auto expect_rounded = [](Stored& got, const Values& want) {
        const Values values = got.get();
        for (size_t i = 0; i < values.size(); ++i)
            ASSERT_NEAR(values[i], want[i], 2 * kRoundoff * std::fabs(want[i]) + 1e-12) << i;
    };
    expect_rounded(w, weights);
    expect_rounded(m, first);
    expect_rounded(v, second);
}

TEST_P(Operations, NoTokensAreNoWork) {
    Stored none = stored({}), w = stored(draw(1, 32 * 16)), d_w = wide(draw(2, 32 * 16));
    const Values before = d_w.get();
    ops_->linear(none.view<2>({0, 16}), w.view<2>({32, 16}), none.view<2>({0, 32}), Sum::set);
    ops_->linear_grad_weight(none.view<2>({0, 32}), none.view<2>({0, 16}), d_w.floats<2>({32, 16}));
    EXPECT_EQ(d_w.get(), before);
}

TEST(CudaOps, OfAnotherBackendOrABuildWithoutCudaAreRefused) {
    std::string said;
    try {
        make_cuda_ops(make_backend("cpu"));
    } catch (const InputError& error) {
        said = error.what();
    } catch (const UnsupportedError& error) {
        said = error.what();
    }
    EXPECT_TRUE(said == "backend cpu is not a cuda backend" ||
                said.find("this build has no CUDA") != std::string::npos)
        << said;
}

}  // namespace
}  // namespace msa::train
