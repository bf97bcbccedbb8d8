// SPDX-License-Identifier: MIT
// Hidden states are far from isotropic: a few directions have most of their variance, and steps of
// equal size in all directions overfit the small ones. So training uses whitened coordinates. With
// C = mean(x x^T) over training tokens, r a hundredth of C's mean diagonal and the symmetric S = (C
// + r I)^(-1/2):
//   x' = S x,   w = w' S,   w' x' = w x.
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <span>

#include "core/indexer/index_branch.h"
#include "core/tensor.h"

namespace msa::experiments::fit {

class Whitening {
public:
    /// Computes S from the hidden states x [N, d_model] at `tokens`, and replaces all of x by x'.
    Whitening(View<float, 2> x, std::span<const int64_t> tokens, int threads);

    /// The weights for plain hidden states from those for whitened ones.
    IndexWeights plain(const IndexWeights& whitened) const;

private:
    Eigen::MatrixXd root_;  // S
};

}  // namespace msa::experiments::fit
