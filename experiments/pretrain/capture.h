// SPDX-License-Identifier: MIT
#pragma once

#include <filesystem>

#include "core/train/model.h"
#include "experiments/pretrain/batches.h"

namespace msa::experiments::pretrain {

/// Writes the activations of every layer of a trained model on `text` as an msa-activations file,
/// in float: x, q, k, v, and index_q and index_k of layers with an Index Branch. Replaces `path`.
/// `model_config`: JSON text.
void write_capture(const std::filesystem::path& path, train::Model& model, const Sequences& text,
                   bool sparse, const std::string& model_config);

}  // namespace msa::experiments::pretrain
