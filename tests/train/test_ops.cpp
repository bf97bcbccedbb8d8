// SPDX-License-Identifier: MIT
// Products, norms, RoPE and SwiGLU of core/train/ops.h, with their gradients, on the host and on a
// GPU, against sums in double.
#include "core/error.h"
#include "tests/train/operations.h"

namespace msa::train {
namespace {

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
            expect(to, want, static_cast<double>(b) + 2, sum == Sum::add ? 2 : 1);
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
            expect(to, want, static_cast<double>(a) + 2, sum == Sum::add ? 2 : 1);
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
