// SPDX-License-Identifier: MIT
#include "experiments/pretrain/options.h"

namespace msa::experiments::pretrain {
namespace {

/// Two cores train it in well under a minute.
PretrainOptions nano() {
    PretrainOptions o;
    o.sizes = {.vocabulary = kBytes,
               .layers = 2,
               .model_dim = 64,
               .hidden_dim = 128,
               .query_heads = 4,
               .kv_heads = 2,
               .head_dim = 16,
               .rotary_dim = 8,
               .rope_theta = 1e4,
               .index_dim = 16,
               .index_rotary = 8};
    o.context = 256;
    o.sequences = 8;
    o.block_size = 16;
    o.rule.top_k = 4;
    o.training = {.steps = 200, .warmup_steps = 40, .lr = 4e-3, .lr_warmup = 20};
    o.task = {.pairs = 4, .questions = 4, .key_length = 2, .value_length = 2, .copy_length = 8};
    o.probe_every = 50;
    o.evaluate_every = 100;
    o.checkpoint_every = 100;
    o.eval_sequences = 16;
    o.eval_exercises = 10;
    return o;
}

/// 13.9 million parameters; 131 million bytes.
PretrainOptions pilot() {
    PretrainOptions o;
    o.sizes = {.vocabulary = kBytes,
               .layers = 6,
               .model_dim = 384,
               .hidden_dim = 1024,
               .query_heads = 16,
               .kv_heads = 4,
               .head_dim = 64,
               .rotary_dim = 32,
               .index_dim = 64,
               .index_rotary = 32};
    o.context = 4096;
    o.sequences = 8;
    o.block_size = 64;
    o.rule.top_k = 8;
    o.training = {.steps = 4000, .warmup_steps = 300, .lr = 1e-3, .lr_warmup = 100};
    o.probe_every = 200;
    o.evaluate_every = 400;
    o.checkpoint_every = 1000;
    o.eval_sequences = 512;
    o.eval_exercises = 50;
    return o;
}

/// 29 million parameters; the sizes of the pilot model that records of fits and kernels name.
PretrainOptions large() {
    PretrainOptions o = pilot();
    o.sizes.layers = 8;
    o.sizes.model_dim = 512;
    o.sizes.hidden_dim = 1408;
    o.context = 8192;
    o.sequences = 4;
    o.rule.top_k = 16;
    o.training.steps = 7500;
    return o;
}

}  // namespace

PretrainOptions preset(const std::string& name) {
    constexpr PretrainOptions (*kMake[])() = {nano, pilot, large};
    const size_t which = choice("preset", name, {std::begin(kPresets), std::end(kPresets)});
    PretrainOptions o = kMake[which]();
    o.preset = name;
    return o;
}

}  // namespace msa::experiments::pretrain
