// SPDX-License-Identifier: MIT
// Measures the layers of a model on held-out text: the Index Branch's selection and the attention
// lost by it, the entropies of both branches, and the mass on the first tokens.
#pragma once

#include <span>
#include <vector>

#include "core/train/model.h"
#include "experiments/pretrain/batches.h"

namespace msa::experiments::pretrain {

/// The metrics of a probe, by the names of analysis/metrics.h.
inline constexpr const char* kProbed[] = {"kl",
                                          "block_recall",
                                          "score_recall",
                                          "mass_kept",
                                          "oracle_mass",
                                          "entropy_dense",
                                          "entropy_sparse",
                                          "entropy_index",
                                          "sink_mass_dense",
                                          "sink_mass_sparse",
                                          "first_block_rate",
                                          "local_rate",
                                          "far_overlap",
                                          "learned_sink_mass"};
/// The metrics that are also reported per head.
inline constexpr const char* kProbedHeads[] = {"sink_mass_dense", "sink_mass_sparse",
                                               "learned_sink_mass"};

/// Means over queries; those of recalls, masses, rates and overlap count the queries that see more
/// than k blocks. NaN if a layer has no Index Branch or no learnable sink, or if the backend does
/// not support the operation.
struct Probe {
    std::vector<std::vector<double>> layers{};              // [kProbed][L], mean over groups, heads
    std::vector<std::vector<std::vector<double>>> heads{};  // [kProbedHeads][L][Hq]
};

/// `sparse` as in Model::forward. In the warm-up, too, measures what the Index Branch would select.
Probe probe(train::Model& model, const Sequences& text, bool sparse);

/// Copies a tensor of a model to the host as floats.
Tensor<float, 3> on_host(train::Ops& ops, In<3> values);

}  // namespace msa::experiments::pretrain
