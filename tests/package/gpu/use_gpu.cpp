// SPDX-License-Identifier: MIT
// Attention of one token, which sees itself alone, on the GPU; without a GPU, the reason that the
// backend gives.
#include <cmath>
#include <cstdio>

#include "core/error.h"
#include "gpu/cuda_backend.h"

namespace {

bool answers(msa::Backend& cuda) {
    const msa::Problem problem = msa::square_problem(1, 1, 1, 16, 0, 8);
    msa::Tensor<float, 3> ones({1, 1, 16});
    for (int d = 0; d < 16; ++d) ones(0, 0, d) = 1;
    const auto there = cuda.upload(ones.view());
    auto out = cuda.make<float, 3>({1, 1, 16});
    auto lse = cuda.make<float, 2>({1, 1});
    cuda.dense_attention(problem, {there, there, there}, {out, lse});
    return std::abs(cuda.download(out.view())(0, 0, 3) - 1) < 1e-3F &&
           std::abs(cuda.download(lse.view())(0, 0) - 4) < 1e-3F;
}

}  // namespace

int main() {
    try {
        const auto cuda = msa::make_cuda_backend({});
        const bool right = answers(*cuda);
        std::printf("cuda answers %s on %s\n", right ? "right" : "WRONG", cuda->device().c_str());
        return right ? 0 : 1;
    } catch (const msa::UnsupportedError& error) {
        std::printf("%s\n", error.what());
        return 0;
    }
}
