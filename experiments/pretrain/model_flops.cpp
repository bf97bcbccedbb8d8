// SPDX-License-Identifier: MIT
#include "experiments/pretrain/model_flops.h"

#include <algorithm>

#include "analysis/cost_model.h"
#include "experiments/driver/presets.h"
#include "experiments/report/text.h"

namespace msa::experiments::pretrain {
namespace {

constexpr double kPasses = 3;  // forward, and backward for both factors of every product

/// (query, key) pairs of the first block and a window of newest tokens, k Bk tokens in all.
double window_pairs(const Problem& p, int64_t top_k) {
    double pairs = 0;
    for (const KeyRange& seen : visible_keys(p))
        pairs += static_cast<double>(std::min(seen.count, top_k * p.block_size));
    return pairs;
}

double index_flops(const train::ModelConfig& config, const Problem& p, bool sparse) {
    const train::MsaOptions& o = config.msa;
    const double all = analysis::causal_pairs(p);
    const double attended = sparse ? analysis::kept_pairs(p, o.rule.top_k) : all;
    double flops = analysis::index_scores_flops(p);
    if (o.value_head)
        flops += kPasses * analysis::attention_flops(config.value_head_problem(p.batch), attended);
    if (!o.kl) return flops;
    const bool wider = sparse && o.kl_full_support;
    const double support = wider ? all : attended;
    if (wider) flops += analysis::block_mass_flops(p);  // the teacher's logits
    return flops + analysis::index_gradient_flops(p, support * static_cast<double>(p.kv_heads));
}

double layer_flops(const train::ModelConfig& config, const Problem& p, train::Attention kind,
                   bool sparse) {
    switch (kind) {
        case train::Attention::full: return kPasses * analysis::dense_attention_flops(p);
        case train::Attention::window:
            return kPasses * analysis::attention_flops(p, window_pairs(p, config.msa.rule.top_k));
        case train::Attention::passive: sparse = false; break;
        case train::Attention::msa: break;
    }
    const double pairs =
        sparse ? analysis::kept_pairs(p, config.msa.rule.top_k) : analysis::causal_pairs(p);
    return kPasses * analysis::attention_flops(p, pairs) + index_flops(config, p, sparse);
}

}  // namespace

double step_flops(const train::ModelConfig& config, const train::ParameterList& parameters,
                  const PackedBatch& layout, bool sparse) {
    double weights = 0;
    for (const train::Parameter& one : parameters.all())
        if (one.rows > 1 && one.name != train::kEmbedding)
            weights += static_cast<double>(one.size());
    const Problem p = config.problem(layout);
    double flops = 2 * kPasses * weights * static_cast<double>(p.queries());
    for (int64_t layer = 0; layer < config.sizes.layers; ++layer)
        flops += layer_flops(config, p, config.attention_of(layer), sparse);
    return flops;
}

Peak peak_of(Space space, const std::string& device, Element element) {
    if (space == Space::host) return {.words = "the peak of a processor is not known"};
    const std::string name = device.substr(0, device.find(','));
    const std::string chip = chip_of(device);
    if (chip.empty()) return {.words = "data/hardware has no table of " + name};
    const analysis::Hardware on = read_hardware(chip, Ceilings::peak);
    if (!on.flops_per_second.contains(element))
        return {.words = concat(on.name, " has no peak in ", to_string(element))};
    const double peak = on.peak(element);
    return {peak,
            concat(number_text(peak / kTera), " TFLOP/s in ", to_string(element), ", ", on.name)};
}

}  // namespace msa::experiments::pretrain
