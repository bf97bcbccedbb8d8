// SPDX-License-Identifier: MIT
// A look into the layers of a model on held-out text: what the Index Branch would select and what
// attention loses by it, how spread out both branches are, and what lies on the first tokens.
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
/// Those of them that are told head by head, too.
inline constexpr const char* kProbedHeads[] = {"sink_mass_dense", "sink_mass_sparse",
                                               "learned_sink_mass"};

/// NaN where a layer has no Index Branch, or no learnable sink, or a backend no such answer. Means
/// over queries; those of recalls, masses, rates and overlap count the queries that see more than k
/// blocks.
struct Probe {
    std::vector<std::vector<double>> layers{};              // [kProbed][L], mean over groups, heads
    std::vector<std::vector<std::vector<double>>> heads{};  // [kProbedHeads][L][Hq]
};

/// `sparse` as in Model::forward: in its warm-up, too, the Index Branch is asked what it would
/// choose.
Probe probe(train::Model& model, const Sequences& text, bool sparse);

/// A tensor of a model as floats on the host.
Tensor<float, 3> on_host(train::Ops& ops, In<3> values);

}  // namespace msa::experiments::pretrain
