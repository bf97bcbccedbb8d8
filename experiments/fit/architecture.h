// SPDX-License-Identifier: MIT
// What msa-fit-indexer knows of an architecture beyond its projections
// (core/indexer/architecture.h). An architecture is one file here (msa.cpp, dsa.cpp,
// seerattention.cpp, qsa.cpp), whose row is in kFitted of architecture.cpp; no other file tells
// them apart.
#pragma once

#include <memory>
#include <span>

#include "core/io/activations.h"
#include "experiments/fit/data.h"
#include "experiments/fit/indexer.h"

namespace msa::experiments::fit {

/// Sizes of a fit that an architecture writes into a layer's metadata.
struct FittedSizes {
    const IndexForm& form;
    int64_t block_size;
};

struct FitArchitecture {
    const char* does;                  // what the value of --architecture means
    const char* heads;                 // what "2 index heads of 16 channels" is followed by
    std::span<const io::Field> makes;  // its operands: queries, keys, weights of heads
    bool any_heads = false;            // --index-heads; else one per group
    bool reads_x = true;               // else queries and keys before RoPE
    Teacher teacher = Teacher::mean;   // the default
    bool one_teacher = false;          // which has no other
    bool warms_up = false;             // by default all steps have the full support

    /// Sets what is not common to all; `model`: frequencies of the model's RoPE. Absent: nothing.
    void (*set_form)(IndexForm&, const io::LayerInfo&, std::span<const double> model) = nullptr;
    void (*set_sizes)(const FittedSizes&, io::LayerInfo&) = nullptr;
    /// Where keys are of several tokens: how many, and the inputs of index_keys for consecutive
    /// tokens of one sequence, of which the first one begins a key.
    int64_t (*key_tokens)(const io::LayerInfo&) = nullptr;
    Tensor<float, 2> (*pool)(View<const float, 3> rows, int64_t tokens) = nullptr;
    /// The teacher over keys of several tokens, QueryOperands::target.
    Tensor<float, 3> (*target)(const LayerOperands&, const TrainingLayer&, const QueryOperands&,
                               Teacher, int threads) = nullptr;
    std::unique_ptr<Indexer> (*make)(const TrainingLayer&, const LayerOperands&,
                                     int threads) = nullptr;
};

const FitArchitecture& fitted(Architecture);

extern const FitArchitecture kMsa, kDsa, kSeerAttention, kQsa;

}  // namespace msa::experiments::fit
