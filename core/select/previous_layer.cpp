// SPDX-License-Identifier: MIT
#include "core/select/cost.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class PreviousLayerSelector final : public Selector {
public:
    std::string_view name() const override { return "previous-layer"; }
    std::string_view rule() const override {
        return "the oracle's choice in the layer before it, taken over (cf. TidalDecode, arXiv "
               "2410.05076)";
    }
    std::string_view note() const override {
        return "charged with the dense products of the layer before, which must attend densely";
    }
    Family family() const override { return Family::oracle; }
    Needs needs() const override { return {.previous_layer = true}; }
    PolicyCost do_cost(const Phase& phase) const override { return oracle_cost(phase.problem); }
    Mirror<3> score(const SelectorLayer&, const SelectorChunk& chunk) override {
        return chunk.previous_mass();
    }
};

}  // namespace

std::unique_ptr<Selector> make_previous_layer_selector() {
    return std::make_unique<PreviousLayerSelector>();
}

}  // namespace msa
