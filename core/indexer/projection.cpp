// SPDX-License-Identifier: MIT
#include "core/indexer/projection.h"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace msa {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

Tensor<float, 3> project(View<const float, 2> x, View<const float, 2> weight, int64_t heads) {
    const int64_t rows = weight.extent(0);
    require(x.extent(1) == weight.extent(1), "x has ", x.extent(1), " columns, weight ",
            weight.extent(1), "; they must have the same number");
    require(heads >= 1 && rows % heads == 0, "weight has ", rows,
            " rows, must be a multiple of the ", heads, " heads");
    Tensor<float, 3> out({x.extent(0), heads, rows / heads});
    Eigen::Map<Matrix>(out.data(), x.extent(0), rows).noalias() =
        Eigen::Map<const Matrix>(x.data(), x.extent(0), x.extent(1)) *
        Eigen::Map<const Matrix>(weight.data(), rows, weight.extent(1)).transpose();
    return out;
}

void rms_norm(View<float, 3> heads, View<const float, 1> weight, double epsilon, float offset) {
    const int64_t width = heads.extent(2);
    require(weight.size() == width, "norm weight has ", weight.size(),
            " entries, must have one per channel = ", width);
    for (int64_t row = 0; row < heads.extent(0) * heads.extent(1); ++row) {
        float* h = heads.data() + row * width;
        double squares = 0;
        for (int64_t d = 0; d < width; ++d) squares += double{h[d]} * double{h[d]};
        const auto inverse =
            static_cast<float>(1 / std::sqrt(squares / static_cast<double>(width) + epsilon));
        for (int64_t d = 0; d < width; ++d) h[d] = h[d] * inverse * (offset + weight(d));
    }
}

void apply_rope(View<float, 3> heads, const std::vector<int64_t>& positions,
                std::span<const double> inverse_frequencies) {
    const auto half = std::ssize(inverse_frequencies);
    require(half > 0 && 2 * half <= heads.extent(2), "RoPE has ", half,
            " frequencies, must have at least 1 and at most half the head dim = ", heads.extent(2));
    require(static_cast<int64_t>(positions.size()) == heads.extent(0), "there are ",
            positions.size(), " positions, must be one per token = ", heads.extent(0));
    for (int64_t i = 0; i < heads.extent(0); ++i)
        for (int64_t c = 0; c < half; ++c) {
            const double angle = static_cast<double>(positions[static_cast<size_t>(i)]) *
                                 inverse_frequencies[static_cast<size_t>(c)];
            const auto cosine = static_cast<float>(std::cos(angle));
            const auto sine = static_cast<float>(std::sin(angle));
            for (int64_t h = 0; h < heads.extent(1); ++h) {
                float& low = heads(i, h, c);
                float& high = heads(i, h, c + half);
                const float rotated = low * cosine - high * sine;
                high = high * cosine + low * sine;
                low = rotated;
            }
        }
}

void apply_rope(View<float, 3> heads, const std::vector<int64_t>& positions, int64_t rotary_dim,
                double theta) {
    require(rotary_dim > 0 && rotary_dim % 2 == 0 && rotary_dim <= heads.extent(2),
            "rotary_dim is ", rotary_dim,
            ", must be even, positive and at most the head dim = ", heads.extent(2));
    const std::vector<double> frequencies = plain_frequencies(rotary_dim, theta);
    apply_rope(heads, positions, frequencies);
}

void split_pairs(View<float, 3> heads, int64_t pairs) {
    std::vector<float> channels(static_cast<size_t>(2 * pairs));
    for (int64_t i = 0; i < heads.extent(0); ++i)
        for (int64_t h = 0; h < heads.extent(1); ++h) {
            std::copy_n(&heads(i, h, 0), 2 * pairs, channels.begin());
            for (int64_t c = 0; c < 2 * pairs; ++c)
                heads(i, h, c / 2 + c % 2 * pairs) = channels[static_cast<size_t>(c)];
        }
}

void undo_rope(View<float, 3> heads, std::span<const int64_t> positions, const RopePairs& rope) {
    if (rope.frequencies.empty()) return;
    if (rope.interleaved) split_pairs(heads, std::ssize(rope.frequencies));
    std::vector<int64_t> back;
    for (int64_t position : positions) back.push_back(-position);
    apply_rope(heads, back, rope.frequencies);
}

}  // namespace msa
