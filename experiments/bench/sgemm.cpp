// SPDX-License-Identifier: MIT
#include "experiments/bench/sgemm.h"

#include <Eigen/Core>

namespace msa::experiments::bench {

void eigen_sgemm(const float* a, const float* b, float* c, int64_t n) {
    using Matrix = Eigen::Map<const Eigen::MatrixXf>;
    Eigen::Map<Eigen::MatrixXf>(c, n, n).noalias() = Matrix(a, n, n) * Matrix(b, n, n);
}

}  // namespace msa::experiments::bench
