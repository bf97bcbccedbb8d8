// SPDX-License-Identifier: MIT
#include "experiments/fit/whitening.h"

#include <Eigen/Eigenvalues>
#include <algorithm>

#include "core/error.h"
#include "core/problem.h"

namespace msa::experiments::fit {
namespace {

constexpr double kRidge = 1e-2;        // of the mean diagonal
constexpr int64_t kTileTokens = 1024;  // of one product
constexpr double kSmallest = 1e-30;    // against hidden states that are all zero

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// mean(x x^T) over the tokens; its lower half is set.
Eigen::MatrixXd second_moment(View<const float, 2> x, std::span<const int64_t> tokens) {
    const int64_t width = x.extent(1);
    Eigen::MatrixXd sum = Eigen::MatrixXd::Zero(width, width);
    const auto n = static_cast<int64_t>(tokens.size());
    for (int64_t begin = 0; begin < n; begin += kTileTokens) {
        const int64_t count = std::min(kTileTokens, n - begin);
        Matrix rows(count, width);
        for (int64_t i = 0; i < count; ++i)
            rows.row(i) = Eigen::Map<const Eigen::RowVectorXf>(
                x[tokens[static_cast<size_t>(begin + i)]].data(), width);
        Eigen::MatrixXf part = Eigen::MatrixXf::Zero(width, width);
        part.selfadjointView<Eigen::Lower>().rankUpdate(rows.transpose());
        sum += part.cast<double>();
    }
    return sum / static_cast<double>(n);
}

}  // namespace

Whitening::Whitening(View<float, 2> x, std::span<const int64_t> tokens, int threads) {
    Eigen::MatrixXd moment = second_moment(x, tokens);
    moment.diagonal().array() += kRidge * moment.diagonal().mean() + kSmallest;
    root_ = Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd>(moment).operatorInverseSqrt();
    const Matrix root = root_.cast<float>();
    const int64_t tiles = ceil_div(x.extent(0), kTileTokens);
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t begin = tile * kTileTokens;
        Eigen::Map<Matrix> rows(x[begin].data(), std::min(kTileTokens, x.extent(0) - begin),
                                x.extent(1));
        rows = rows * root;
    }
}

IndexWeights Whitening::plain(const IndexWeights& whitened) const {
    IndexWeights result = whitened;
    for (View<float, 2> w : {result.w_q(), result.w_k(), result.w_h()}) {
        if (!w) continue;
        Eigen::Map<Matrix> rows(w.data(), w.extent(0), w.extent(1));
        rows = (rows.cast<double>() * root_).cast<float>();
    }
    return result;
}

}  // namespace msa::experiments::fit
