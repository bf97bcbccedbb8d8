// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/select/attention_rows.h"
#include "core/select/eviction.h"

namespace msa {
namespace {

class TovaSelector final : public EvictingSelector {
public:
    std::string_view name() const override { return "tova"; }
    std::string_view rule() const override {
        return "attention that the query before paid to the block among the blocks that were kept "
               "for it, mean over the group's heads; a block once evicted is lost, the prompt is "
               "dense (TOVA, sequential, arXiv 2401.06104)";
    }
    std::string_view note() const override {
        return "whole blocks are evicted, the source's unit is a token; the source's mean is over "
               "all heads of the layer, as it is here where all groups share one choice";
    }
    Needs needs() const override {
        return {.queries = true, .in_order = true, .rule = true, .phases = Phases::decode};
    }

protected:
    /// What the prompt's last query paid.
    Tensor<float, 2> begin(const SelectorLayer& layer, int64_t sequence) const override {
        const Problem& p = layer.problem;
        Tensor<float, 2> paid({p.kv_heads, p.blocks()});
        const int64_t last = sequence_start(p, sequence) + prompt_length(layer, sequence) - 1;
        const Mirror<3> mass = mass_at(layer, std::vector<int64_t>{last}, p.block_size);
        const View<const float, 3> from = mass.host();
        for (int64_t r = 0; r < p.kv_heads; ++r)
            std::copy_n(from[0][r].data(), from.extent(2), paid.view()[r].data());
        return paid;
    }
    float receive(float, float share) const override { return share; }
};

}  // namespace

std::unique_ptr<Selector> make_tova_selector() { return std::make_unique<TovaSelector>(); }

}  // namespace msa
