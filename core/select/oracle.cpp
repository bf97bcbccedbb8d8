// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/select/selector.h"

namespace msa {
namespace {

class OracleSelector final : public Selector {
public:
    std::string_view name() const override { return "oracle"; }
    std::string_view rule() const override {
        return "the blocks of highest Main Branch probability, mean over the group's heads (I* of "
               "the recall definitions): the best any selector can keep";
    }
    Needs needs() const override { return {.mass = true}; }
    void score(const SelectorLayer&, const SelectorChunk& chunk, View<float, 3> scores) override {
        std::copy_n(chunk.mass.data(), scores.size(), scores.data());
    }
};

}  // namespace

std::unique_ptr<Selector> make_oracle_selector() { return std::make_unique<OracleSelector>(); }

}  // namespace msa
