// SPDX-License-Identifier: MIT
// Stands in where the build found no headers of cuDNN.
#include "gpu/plan/dense_attention_cudnn.h"

namespace msa::cuda {

struct DenseAttentionCudnn::Library {};

DenseAttentionCudnn::DenseAttentionCudnn(bool unordered) : unordered_(unordered) {}
DenseAttentionCudnn::~DenseAttentionCudnn() = default;

bool DenseAttentionCudnn::run(const Call&, const AttentionInput&, const AttentionOutput&) {
    why_not_ = "this build is without cuDNN";
    return false;
}

bool DenseAttentionCudnn::run_gradient(const Call&, const AttentionInput&, const AttentionSaved&,
                                       const AttentionGradient&) {
    why_not_ = "this build is without cuDNN";
    return false;
}

std::string DenseAttentionCudnn::version() const { return ""; }

std::string DenseAttentionCudnn::gradient_name() const { return ""; }

}  // namespace msa::cuda
