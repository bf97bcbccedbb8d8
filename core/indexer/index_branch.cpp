// SPDX-License-Identifier: MIT
#include "core/indexer/index_branch.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/indexer/projection.h"
#include "core/problem.h"
#include "core/threads.h"

namespace msa {
namespace {

constexpr int64_t kTileTokens = 256;
constexpr int64_t kTileColumns = 64;  // of d_model, in the gradient of a weight

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// One of the two projections.
struct Projection {
    const IndexForm& form;
    View<const float, 2> weight;  // [H * didx, columns]
    View<const float, 1> norm;    // [didx] or absent
    int64_t heads;
    int threads;

    int64_t inputs() const { return form.traits().own_inputs ? heads : 1; }  // slices of x
};

Projection queries_of(const IndexWeights& w, int threads) {
    return {w.form(), w.w_q(), w.norm_q(), w.form().groups, threads_or_all(threads)};
}

Projection keys_of(const IndexWeights& w, int threads) {
    return {w.form(), w.w_k(), w.norm_k(), w.form().key_heads(), threads_or_all(threads)};
}

void rotate(const IndexForm& form, View<float, 3> heads, std::span<const int64_t> positions,
            int64_t direction) {
    if (form.rotary_dim == 0) return;
    std::vector<int64_t> turned(positions.begin(), positions.end());
    for (int64_t& position : turned) position *= direction;
    if (form.rope_frequencies.empty())
        apply_rope(heads, turned, form.rotary_dim, form.rope_theta);
    else
        apply_rope(heads, turned, form.rope_frequencies);
}

/// The cut of n tokens into tiles: token range of tile t.
QueryRange tile_range(int64_t tile, int64_t tokens) {
    return {tile * kTileTokens, std::min((tile + 1) * kTileTokens, tokens)};
}

void check_input(const Projection& p, View<const float, 2> x, std::span<const int64_t> positions) {
    MSA_CHECK(x.extent(1) == p.inputs() * p.weight.extent(1));
    MSA_CHECK(x.extent(0) == static_cast<int64_t>(positions.size()));
}

/// Heads [n, H, didx] before norm and rotation.
Tensor<float, 3> plain_heads(const Projection& p, View<const float, 2> x) {
    if (p.inputs() == 1) return project(x, p.weight, p.heads);
    const int64_t width = p.weight.extent(1), channels = p.form.index_dim;
    Tensor<float, 3> heads({x.extent(0), p.heads, channels}, Fill::nothing);
    Tensor<float, 2> input({x.extent(0), width}, Fill::nothing);
    for (int64_t h = 0; h < p.heads; ++h) {
        for (int64_t i = 0; i < x.extent(0); ++i)
            std::copy_n(&x(i, h * width), width, &input(i, 0));
        const Tensor<float, 3> head = project(input, p.weight.slice(h * channels, channels), 1);
        for (int64_t i = 0; i < x.extent(0); ++i)
            std::copy_n(&head(i, 0, 0), channels, &heads(i, h, 0));
    }
    return heads;
}

Tensor<float, 3> forward(const Projection& p, View<const float, 2> x,
                         std::span<const int64_t> positions, const ChangeProduct& change) {
    check_input(p, x, positions);
    Tensor<float, 3> out({x.extent(0), p.heads, p.form.index_dim});
#pragma omp parallel for schedule(dynamic) num_threads(p.threads)
    for (int64_t tile = 0; tile < ceil_div(x.extent(0), kTileTokens); ++tile) {
        const auto [begin, end] = tile_range(tile, x.extent(0));
        Tensor<float, 3> heads = plain_heads(p, x.slice(begin, end - begin));
        if (change) change(heads);
        if (p.norm) rms_norm(heads, p.norm, IndexForm::kNormEpsilon, 0);
        rotate(p.form, heads,
               positions.subspan(static_cast<size_t>(begin), static_cast<size_t>(heads.extent(0))),
               1);
        std::copy_n(heads.data(), heads.size(), out.view()[begin].data());
    }
    return out;
}

/// In place: the gradient of one head's y = h / rms(h) * w becomes that of h; adds to that of w.
/// With u = h / rms and g = d_y * w: d_h = (g - u * mean(g * u)) / rms, d_w = d_y * u.
void rms_norm_grad(const float* h, View<const float, 1> weight, float* d, double* d_weight) {
    const int64_t width = weight.size();
    double squares = 0, along = 0;
    for (int64_t c = 0; c < width; ++c) {
        squares += double{h[c]} * double{h[c]};
        along += double{d[c]} * double{weight(c)} * double{h[c]};
    }
    const double size = static_cast<double>(width);
    const double inverse = 1 / std::sqrt(squares / size + IndexForm::kNormEpsilon);
    along *= inverse / size;
    for (int64_t c = 0; c < width; ++c) {
        const double unit = double{h[c]} * inverse;
        d_weight[c] += double{d[c]} * unit;
        d[c] = static_cast<float>((double{d[c]} * double{weight(c)} - unit * along) * inverse);
    }
}

/// Gradient of the norm's weight; d, of the normed heads, becomes that of the plain ones, which are
/// computed again. Sums go tile by tile, whatever the number of threads.
void backward_norm(const Projection& p, View<const float, 2> x, View<float, 3> d,
                   View<float, 1> d_norm) {
    const int64_t tiles = ceil_div(x.extent(0), kTileTokens), width = p.form.index_dim;
    Tensor<double, 2> sums({tiles, width});
#pragma omp parallel for schedule(dynamic) num_threads(p.threads)
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const auto [begin, end] = tile_range(tile, x.extent(0));
        const Tensor<float, 3> heads = plain_heads(p, x.slice(begin, end - begin));
        for (int64_t at = 0; at < heads.size(); at += width)
            rms_norm_grad(heads.data() + at, p.norm, d[begin].data() + at, &sums(tile, 0));
    }
    for (int64_t c = 0; c < width; ++c) {
        double sum = 0;
        for (int64_t tile = 0; tile < tiles; ++tile) sum += sums(tile, c);
        d_norm(c) = static_cast<float>(sum);
    }
}

/// Gradient of a weight [rows, columns] from that of its outputs d, `rows` for each token. Where x
/// holds several inputs, each is that of as many rows.
void backward_product(View<const float, 3> d, View<const float, 2> x, int64_t inputs,
                      View<float, 2> d_weight, int threads) {
    const int64_t rows = d_weight.extent(0) / inputs, columns = d_weight.extent(1);
    const Eigen::Map<const Matrix> left(d.data(), x.extent(0), inputs * rows);
    const Eigen::Map<const Matrix> right(x.data(), x.extent(0), inputs * columns);
    Eigen::Map<Matrix> to(d_weight.data(), inputs * rows, columns);
#pragma omp parallel for collapse(2) schedule(dynamic) num_threads(threads)
    for (int64_t input = 0; input < inputs; ++input)
        for (int64_t begin = 0; begin < columns; begin += kTileColumns) {
            const int64_t count = std::min(kTileColumns, columns - begin);
            to.block(input * rows, begin, rows, count).noalias() =
                left.middleCols(input * rows, rows).transpose() *
                right.middleCols(input * columns + begin, count);
        }
}

void backward(const Projection& p, View<const float, 2> x, std::span<const int64_t> positions,
              View<const float, 3> d_heads, View<float, 2> d_weight, View<float, 1> d_norm) {
    check_input(p, x, positions);
    MSA_CHECK(d_heads.shape() == (Shape<3>{x.extent(0), p.heads, p.form.index_dim}));
    Tensor<float, 3> d(d_heads.shape());
    std::copy_n(d_heads.data(), d_heads.size(), d.data());
#pragma omp parallel for schedule(dynamic) num_threads(p.threads)
    for (int64_t tile = 0; tile < ceil_div(x.extent(0), kTileTokens); ++tile) {
        const auto [begin, end] = tile_range(tile, x.extent(0));
        const View<float, 3> part = d.view().slice(begin, end - begin);
        rotate(p.form, part,
               positions.subspan(static_cast<size_t>(begin), static_cast<size_t>(part.extent(0))),
               -1);
    }
    if (p.norm) backward_norm(p, x, d, d_norm);
    backward_product(d, x, p.inputs(), d_weight, p.threads);
}

}  // namespace

void IndexForm::validate() const {
    require(groups >= 1, "groups is ", groups, ", must be at least 1");
    require(kMinIndexDim <= index_dim && index_dim <= kMaxIndexDim, "index_dim is ", index_dim,
            ", must be from ", kMinIndexDim, " to ", kMaxIndexDim);
    require(model_dim >= 1, "model_dim is ", model_dim, ", must be at least 1");
    require(rotary_dim >= 0 && rotary_dim % 2 == 0 && rotary_dim <= index_dim, "rotary_dim is ",
            rotary_dim, ", must be even, from 0 to index_dim = ", index_dim);
    require(rope_frequencies.empty() || std::ssize(rope_frequencies) == rotary_dim / 2,
            "there are ", rope_frequencies.size(),
            " frequencies of RoPE, must be rotary_dim / 2 = ", rotary_dim / 2);
    require(traits().own_inputs ? key_dim >= 1 : key_dim == 0, "key_dim is ", key_dim,
            traits().own_inputs ? ", must be at least 1" : ", must be 0");
    require(rotary_dim == 0 || rope_theta > 0, "rope_theta is ", rope_theta, ", must be positive");
}

IndexWeights::IndexWeights(const IndexForm& form) : form_(form) {
    form.validate();
    k_ = element_count(shape_q());
    h_ = k_ + element_count(shape_k());
    norm_ = h_ + element_count(shape_h());
    values_.resize(static_cast<size_t>(norm_ + (form.rms_norm ? 2 * form.index_dim : 0)));
    std::fill(values_.begin() + norm_, values_.end(), 1.0F);
}

Tensor<float, 3> index_queries(const IndexWeights& w, View<const float, 2> x,
                               std::span<const int64_t> positions, int threads,
                               const ChangeProduct& change) {
    return forward(queries_of(w, threads), x, positions, change);
}

Tensor<float, 3> index_keys(const IndexWeights& w, View<const float, 2> x,
                            std::span<const int64_t> positions, int threads,
                            const ChangeProduct& change) {
    return forward(keys_of(w, threads), x, positions, change);
}

Tensor<float, 3> index_head_weights(const IndexWeights& w, View<const float, 2> x, int threads) {
    MSA_CHECK(w.w_h() && x.extent(1) == w.form().model_dim);
    Tensor<float, 3> out({x.extent(0), 1, w.form().groups});
#pragma omp parallel for schedule(dynamic) num_threads(threads_or_all(threads))
    for (int64_t tile = 0; tile < ceil_div(x.extent(0), kTileTokens); ++tile) {
        const auto [begin, end] = tile_range(tile, x.extent(0));
        const Tensor<float, 3> part = project(x.slice(begin, end - begin), w.w_h(), 1);
        std::copy_n(part.data(), part.size(), out.view()[begin].data());
    }
    return out;
}

void index_queries_grad(const IndexWeights& w, View<const float, 2> x,
                        std::span<const int64_t> positions, View<const float, 3> d_index_q,
                        IndexWeights& gradient, int threads) {
    backward(queries_of(w, threads), x, positions, d_index_q, gradient.w_q(), gradient.norm_q());
}

void index_keys_grad(const IndexWeights& w, View<const float, 2> x,
                     std::span<const int64_t> positions, View<const float, 3> d_index_k,
                     IndexWeights& gradient, int threads) {
    backward(keys_of(w, threads), x, positions, d_index_k, gradient.w_k(), gradient.norm_k());
}

void index_head_weights_grad(View<const float, 2> x, View<const float, 3> d_weights,
                             IndexWeights& gradient, int threads) {
    MSA_CHECK(gradient.w_h() && x.extent(1) == gradient.form().model_dim);
    MSA_CHECK(d_weights.shape() == (Shape<3>{x.extent(0), 1, gradient.form().groups}));
    backward_product(d_weights, x, 1, gradient.w_h(), threads_or_all(threads));
}

}  // namespace msa
