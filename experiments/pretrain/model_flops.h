// SPDX-License-Identifier: MIT
// Model FLOPs utilization (MFU): the FLOPs that the model's mathematics asks for, over the time
// that training took and the peak of the chip. Nothing that is computed anew counts, so MFU says
// how far training is from the chip's limit, however it gets there (Chowdhery et al. 2022, PaLM,
// arXiv:2204.02311, appendix B).
#pragma once

#include <string>

#include "core/train/model.h"

namespace msa::experiments::pretrain {

/// FLOPs of a step on sequences of this layout (a multiply-add is 2), forward and backward: 6 for
/// each token and weight of a matrix, but for the embedding, which is read; attention over the
/// pairs that the layer attends to, and its gradient, twice as much; of an Index Branch the scores
/// of all pairs, its value head likewise, and of the KL loss the gradients of the scores on its
/// support, with the teacher's logits where it is wider than attention's. `sparse` as in
/// Model::forward.
double step_flops(const train::ModelConfig& config, const train::ParameterList& parameters,
                  const PackedBatch& layout, bool sparse);

/// What MFU is a share of.
struct Peak {
    double flops_per_second = 0;  // 0: not known
    std::string words;            // "989.4 TFLOP/s in bf16, NVIDIA H200 SXM 141GB", or why not
};

/// The published peak of data/hardware for the chip that `device` names, dense products of
/// `element`. Not known on a host, of a chip without a table, or in an element without an entry.
Peak peak_of(Space space, const std::string& device, Element element);

}  // namespace msa::experiments::pretrain
