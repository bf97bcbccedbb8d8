// SPDX-License-Identifier: MIT
// Loops over rows go in parallel, each row by one thread; sums over rows are cut into tiles of a
// fixed number of rows, or by columns, so that they do not depend on the number of threads.
#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/error.h"
#include "core/problem.h"
#include "core/train/ops.h"

namespace msa::train {
namespace {

constexpr int64_t kTileRows = 64;       // of a loop over rows, and of partial sums
constexpr int64_t kProductRows = 256;   // of a product
constexpr int64_t kTileColumns = 64;    // of a weight's gradient
constexpr int64_t kTileValues = 16384;  // of a list

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixIn = Eigen::Map<const Matrix>;
using MatrixOut = Eigen::Map<Matrix>;
using Row = Eigen::Map<Eigen::ArrayXf>;
using RowIn = Eigen::Map<const Eigen::ArrayXf>;

MatrixIn matrix(In<2> m) { return {m.as<const float>().data(), m.shape()[0], m.shape()[1]}; }
MatrixOut matrix(View<float, 2> m) { return {m.data(), m.extent(0), m.extent(1)}; }

/// Tile t of a count: where it begins and how many it has.
struct Tile {
    int64_t begin, count;
};
Tile tile(int64_t t, int64_t size, int64_t total) {
    return {t * size, std::min(size, total - t * size)};
}

template <typename To, typename Value>
void put(To&& to, const Value& value, Sum sum) {
    if (sum == Sum::set)
        to.noalias() = value;
    else
        to.noalias() += value;
}

class CpuOps final : public Ops {
public:
    explicit CpuOps(std::unique_ptr<Backend> backend)
        : backend_(std::move(backend)), threads_(backend_->host_threads()) {
        require(backend_->space() == Space::host, "backend ", backend_->name(),
                " has memory of its own; training on the host needs one that has not");
    }

    Backend& backend() override { return *backend_; }
    Element element() const override { return Element::f32; }

    void linear(In<2> x, In<2> w, Out<2> y, Sum sum) override {
        const MatrixIn left = matrix(x), right = matrix(w);
        MatrixOut to = matrix(y.as<float>());
        MSA_CHECK(left.cols() == right.cols() && to.rows() == left.rows() &&
                  to.cols() == right.rows());
        by_rows<kProductRows>(left.rows(), [&](Tile t) {
            put(to.middleRows(t.begin, t.count),
                left.middleRows(t.begin, t.count) * right.transpose(), sum);
        });
    }
    void linear_grad_input(In<2> d_y, In<2> w, Out<2> d_x, Sum sum) override {
        const MatrixIn left = matrix(d_y), right = matrix(w);
        MatrixOut to = matrix(d_x.as<float>());
        MSA_CHECK(left.cols() == right.rows() && to.rows() == left.rows() &&
                  to.cols() == right.cols());
        by_rows<kProductRows>(left.rows(), [&](Tile t) {
            put(to.middleRows(t.begin, t.count), left.middleRows(t.begin, t.count) * right, sum);
        });
    }
    void linear_grad_weight(In<2> d_y, In<2> x, View<float, 2> d_w) override {
        const MatrixIn left = matrix(d_y), right = matrix(x);
        MatrixOut to = matrix(d_w);
        MSA_CHECK(left.rows() == right.rows() && to.rows() == left.cols() &&
                  to.cols() == right.cols());
#pragma omp parallel for schedule(dynamic) num_threads(threads_)
        for (int64_t t = 0; t < ceil_div(to.cols(), kTileColumns); ++t) {
            const auto [begin, count] = tile(t, kTileColumns, to.cols());
            to.middleCols(begin, count).noalias() +=
                left.transpose() * right.middleCols(begin, count);
        }
    }

    void rms_norm(In<2> x, View<const float, 1> w, Out<2> y) override {
        const MatrixIn from = matrix(x);
        MatrixOut to = matrix(y.as<float>());
        MSA_CHECK(w.size() == from.cols());
        const RowIn weight(w.data(), w.size());
        by_rows(from.rows(), [&](Tile t) {
            for (int64_t i = t.begin; i < t.begin + t.count; ++i)
                to.row(i) = from.row(i).array() * inverse_rms(from.row(i).data(), w.size()) *
                            weight.transpose();
        });
    }
    /// With u = x / rms and g = d_y w: d_x = (g - u mean(g u)) / rms, d_w = the sum of d_y u.
    void rms_norm_grad(In<2> x, View<const float, 1> w, In<2> d_y, Out<2> d_x, View<float, 1> d_w,
                       Sum sum) override {
        const MatrixIn from = matrix(x), d_to = matrix(d_y);
        MatrixOut d_from = matrix(d_x.as<float>());
        const int64_t width = from.cols(), tiles = ceil_div(from.rows(), kTileRows);
        const RowIn weight(w.data(), width);
        Tensor<float, 2> partial({tiles, width});
        by_rows(from.rows(), [&](Tile t) {
            Row d_weight(&partial(t.begin / kTileRows, 0), width);
            Eigen::ArrayXf unit(width), g(width);
            for (int64_t i = t.begin; i < t.begin + t.count; ++i) {
                const float inverse = inverse_rms(from.row(i).data(), width);
                unit = from.row(i).transpose().array() * inverse;
                g = d_to.row(i).transpose().array();
                d_weight += g * unit;
                g *= weight;
                const auto mean = static_cast<float>((g * unit).cast<double>().mean());
                g = (g - unit * mean) * inverse;
                if (sum == Sum::set)
                    d_from.row(i) = g.transpose();
                else
                    d_from.row(i).array() += g.transpose();
            }
        });
        Row to(d_w.data(), width);
        for (int64_t t = 0; t < tiles; ++t) to += RowIn(&partial(t, 0), width);
    }

    void rotate(Out<3> heads, View<const int32_t, 1> positions, View<const float, 3> table,
                bool backward) override {
        const View<float, 3> h = heads.as<float>();
        const int64_t half = table.extent(1);
        MSA_CHECK(positions.size() == h.extent(0) && 2 * half <= h.extent(2));
        const float direction = backward ? -1.0F : 1.0F;
        by_rows(h.extent(0), [&](Tile t) {
            for (int64_t i = t.begin; i < t.begin + t.count; ++i) {
                const float* angle = table[positions(i)].data();
                for (int64_t head = 0; head < h.extent(1); ++head) {
                    float *low = &h(i, head, 0), *high = low + half;
                    for (int64_t c = 0; c < half; ++c) {
                        const float cosine = angle[2 * c], sine = direction * angle[2 * c + 1];
                        const float turned = low[c] * cosine - high[c] * sine;
                        high[c] = high[c] * cosine + low[c] * sine;
                        low[c] = turned;
                    }
                }
            }
        });
    }

    void swiglu(In<2> gate, In<2> up, Out<2> y) override {
        const int64_t size = element_count(gate.shape());
        const float *g = floats(gate), *u = floats(up);
        float* to = y.as<float>().data();
        by_values(size, [&](Tile t) {
            const RowIn a(g + t.begin, t.count), b(u + t.begin, t.count);
            Row(to + t.begin, t.count) = a / (1 + (-a).exp()) * b;
        });
    }
    /// silu'(g) = s (1 + g (1 - s)) with s = 1 / (1 + exp(-g)).
    void swiglu_grad(In<2> gate, In<2> up, In<2> d_y, Out<2> d_gate, Out<2> d_up) override {
        const int64_t size = element_count(gate.shape());
        const float *g = floats(gate), *u = floats(up), *d = floats(d_y);
        float *d_g = d_gate.as<float>().data(), *d_u = d_up.as<float>().data();
        by_values(size, [&](Tile t) {
            const RowIn a(g + t.begin, t.count), b(u + t.begin, t.count), dy(d + t.begin, t.count);
            const Eigen::ArrayXf s = 1 / (1 + (-a).exp());
            const Eigen::ArrayXf along = dy * b * s * (1 + a * (1 - s));
            Row(d_u + t.begin, t.count) = dy * a * s;
            Row(d_g + t.begin, t.count) = along;
        });
    }

    void embed(View<const int32_t, 1> tokens, In<2> table, Out<2> x) override {
        const View<const float, 2> from = table.as<const float>();
        const View<float, 2> to = x.as<float>();
        for (int64_t i = 0; i < tokens.size(); ++i)
            std::copy_n(from[tokens(i)].data(), from.extent(1), to[i].data());
    }
    void embed_grad(View<const int32_t, 1> tokens, In<2> d_x, View<float, 2> d_table) override {
        const View<const float, 2> from = d_x.as<const float>();
        const int64_t width = from.extent(1);
#pragma omp parallel for schedule(dynamic) num_threads(threads_)
        for (int64_t t = 0; t < ceil_div(width, kTileColumns); ++t) {
            const auto [begin, count] = tile(t, kTileColumns, width);
            for (int64_t i = 0; i < tokens.size(); ++i)
                Row(&d_table(tokens(i), begin), count) += RowIn(&from(i, begin), count);
        }
    }

    void cross_entropy(Out<2> logits, View<const int32_t, 1> targets, View<float, 1> losses,
                       float factor, bool gradient) override {
        MatrixOut all = matrix(logits.as<float>());
        by_rows(all.rows(), [&](Tile t) {
            for (int64_t i = t.begin; i < t.begin + t.count; ++i) {
                Row row(all.row(i).data(), all.cols());
                const int32_t target = targets(i);
                if (target == kNoTarget) {
                    losses(i) = 0;
                    if (gradient) row.setZero();
                    continue;
                }
                const float top = row.maxCoeff<Eigen::PropagateNaN>(), own = row(target);
                const Eigen::ArrayXf weights = (row - top).exp();
                const double sum = weights.cast<double>().sum();
                losses(i) = static_cast<float>(std::log(sum) + double{top} - double{own});
                if (!gradient) continue;
                row = weights * static_cast<float>(double{factor} / sum);
                row(target) -= factor;
            }
        });
    }

    void add(In<1> x, float factor, Out<1> y, Sum sum) override {
        const float* from = x.as<const float>().data();
        float* to = y.as<float>().data();
        by_values(x.shape()[0], [&](Tile t) {
            const RowIn part(from + t.begin, t.count);
            Row there(to + t.begin, t.count);
            if (sum == Sum::set)
                there = factor * part;
            else
                there += factor * part;
        });
    }
    void repeat(In<2> one, Out<3> many) override {
        const View<const float, 2> from = one.as<const float>();
        const View<float, 3> to = many.as<float>();
        for (int64_t i = 0; i < to.extent(0); ++i)
            for (int64_t h = 0; h < to.extent(1); ++h)
                std::copy_n(from[i].data(), from.extent(1), to[i][h].data());
    }
    void sum_heads(In<3> many, Out<2> one) override {
        const View<const float, 3> from = many.as<const float>();
        const View<float, 2> to = one.as<float>();
        for (int64_t i = 0; i < from.extent(0); ++i) {
            Row sum(to[i].data(), to.extent(1));
            sum.setZero();
            for (int64_t h = 0; h < from.extent(1); ++h)
                sum += RowIn(from[i][h].data(), to.extent(1));
        }
    }

    void gather_rows(In<3> from, View<const int32_t, 1> rows, Out<3> to) override {
        const View<const float, 3> all = from.as<const float>();
        const View<float, 3> some = to.as<float>();
        const int64_t width = all.extent(1) * all.extent(2);
        MSA_CHECK(rows.size() == some.extent(0) && width == some.extent(1) * some.extent(2));
        by_rows(rows.size(), [&](Tile t) {
            for (int64_t i = t.begin; i < t.begin + t.count; ++i)
                std::copy_n(all[rows(i)].data(), width, some[i].data());
        });
    }
    void add_rows(In<3> from, View<const int32_t, 1> rows, Out<3> to) override {
        const View<const float, 3> some = from.as<const float>();
        const View<float, 3> all = to.as<float>();
        const int64_t width = all.extent(1) * all.extent(2);
        MSA_CHECK(rows.size() == some.extent(0) && width == some.extent(1) * some.extent(2));
        by_rows(rows.size(), [&](Tile t) {
            for (int64_t i = t.begin; i < t.begin + t.count; ++i)
                Row(all[rows(i)].data(), width) += RowIn(some[i].data(), width);
        });
    }
    void merge_attention(In<3> part_out, View<const float, 2> part_lse, View<const int32_t, 1> rows,
                         Out<3> out, View<float, 2> lse) override {
        const View<const float, 3> part = part_out.as<const float>();
        const View<float, 3> whole = out.as<float>();
        const int64_t heads = whole.extent(1), dims = whole.extent(2);
        MSA_CHECK(rows.size() == part.extent(0) && part_lse.extent(1) == heads);
        by_rows(rows.size(), [&](Tile t) {
            for (int64_t i = t.begin; i < t.begin + t.count; ++i)
                for (int64_t h = 0; h < heads; ++h) {
                    const int64_t row = rows(i);
                    const auto own = double{lse(row, h)}, other = double{part_lse(i, h)};
                    const double both = log_add(own, other);
                    Row to(whole[row][h].data(), dims);
                    to = to * static_cast<float>(share(own, both)) +
                         RowIn(part[i][h].data(), dims) * static_cast<float>(share(other, both));
                    lse(row, h) = static_cast<float>(both);
                }
        });
    }

    void clear(View<float, 1> values) override { std::fill_n(values.data(), values.size(), 0.0F); }
    double total(In<1> values) override {
        const auto sum = [](auto list) {
            return std::accumulate(list.data(), list.data() + list.size(), 0.0);
        };
        return values.element() == Element::f64 ? sum(values.as<const double>())
                                                : sum(values.as<const float>());
    }
    std::vector<double> squared_norms(View<const float, 1> values,
                                      std::span<const int64_t> starts) override {
        std::vector<double> sums(starts.size() - 1);
#pragma omp parallel for schedule(dynamic) num_threads(threads_)
        for (size_t part = 0; part < sums.size(); ++part)
            sums[part] = RowIn(values.data() + starts[part], starts[part + 1] - starts[part])
                             .cast<double>()
                             .square()
                             .sum();
        return sums;
    }
    void adamw(const AdamW& rule, int64_t step, double lr, double factor, View<float, 1> weights,
               View<const float, 1> gradient, View<float, 1> first,
               View<float, 1> second) override {
        by_values(weights.size(), [&](Tile t) {
            const auto part = [&](auto view) {
                return std::span(view.data() + t.begin, static_cast<size_t>(t.count));
            };
            std::vector<float> scaled(part(gradient).begin(), part(gradient).end());
            for (float& g : scaled) g = static_cast<float>(double{g} * factor);
            rule.update(step, lr, part(weights), scaled, part(first), part(second));
        });
    }
    void sum_over(const parallel::Group& workers, View<float, 1> values) override {
        workers.all_reduce(std::span(values.data(), static_cast<size_t>(values.size())));
    }

private:
    static constexpr double kNothing = -std::numeric_limits<double>::infinity();
    /// ln(e^a + e^b)
    static double log_add(double a, double b) {
        const double most = std::max(a, b);
        return most == kNothing ? most : most + std::log(std::exp(a - most) + std::exp(b - most));
    }
    /// e^(part - whole); of nothing, 0.
    static double share(double part, double whole) {
        return part == kNothing ? 0 : std::exp(part - whole);
    }
    static const float* floats(In<2> x) { return x.as<const float>().data(); }
    static float inverse_rms(const float* x, int64_t width) {
        const double mean = RowIn(x, width).cast<double>().square().mean();
        return static_cast<float>(1 / std::sqrt(mean + kNormEpsilon));
    }
    template <int64_t Size = kTileRows, typename Body>
    void by_rows(int64_t rows, const Body& body) const {
#pragma omp parallel for schedule(dynamic) num_threads(threads_)
        for (int64_t t = 0; t < ceil_div(rows, Size); ++t) body(tile(t, Size, rows));
    }
    template <typename Body>
    void by_values(int64_t size, const Body& body) const {
#pragma omp parallel for schedule(dynamic) num_threads(threads_)
        for (int64_t t = 0; t < ceil_div(size, kTileValues); ++t) body(tile(t, kTileValues, size));
    }

    std::unique_ptr<Backend> backend_;
    int threads_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(std::unique_ptr<Backend> backend) {
    return std::make_unique<CpuOps>(std::move(backend));
}

}  // namespace msa::train
