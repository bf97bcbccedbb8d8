// SPDX-License-Identifier: MIT
// Model FLOPs utilization (MFU): the FLOPs of the model's mathematics, divided by the time of
// training and the peak of the chip. Recomputation does not count, so MFU is comparable between
// implementations (Chowdhery et al. 2022, PaLM, arXiv:2204.02311, appendix B).
#pragma once

#include <string>

#include "core/train/model.h"

namespace msa::experiments::pretrain {

/// FLOPs of a step on sequences of this layout (a multiply-add is 2), forward and backward. They
/// are: 6 per token and matrix weight, except for the embedding; attention over the attended pairs,
/// and twice as much for its gradient; for an Index Branch the scores of all pairs, the same for
/// its value head, and for the KL loss the gradients of the scores on its support, plus the
/// teacher's logits if that is wider than attention's. `sparse` as in Model::forward.
double step_flops(const train::ModelConfig& config, const train::ParameterList& parameters,
                  const PackedBatch& layout, bool sparse);

/// The peak rate that MFU refers to.
struct Peak {
    double flops_per_second = 0;  // 0: not known
    std::string words;            // "989.4 TFLOP/s in bf16, NVIDIA H200 SXM 141GB", or why not
};

/// The published peak of data/hardware for the chip that `device` names, for dense products of
/// `element`. Unknown on a host, for a chip without a file, or for an element without an entry.
Peak peak_of(Space space, const std::string& device, Element element);

}  // namespace msa::experiments::pretrain
