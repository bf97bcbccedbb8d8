// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/select/selector.h"

namespace msa {
namespace {

class PreviousLayerSelector final : public Selector {
public:
    std::string_view name() const override { return "previous-layer"; }
    std::string_view rule() const override {
        return "the oracle's choice in the layer before it in the file, taken over";
    }
    Needs needs() const override { return {.previous_mass = true}; }
    void score(const SelectorLayer&, const SelectorChunk& chunk, View<float, 3> scores) override {
        std::copy_n(chunk.previous_mass.data(), scores.size(), scores.data());
    }
};

}  // namespace

std::unique_ptr<Selector> make_previous_layer_selector() {
    return std::make_unique<PreviousLayerSelector>();
}

}  // namespace msa
