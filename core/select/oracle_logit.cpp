// SPDX-License-Identifier: MIT
#include "core/select/cost.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class OracleLogitSelector final : public Selector {
public:
    std::string_view name() const override { return "oracle-logit"; }
    std::string_view rule() const override {
        return "the blocks of highest Main Branch logit, maximum over the block's tokens and the "
               "group's heads";
    }
    Family family() const override { return Family::oracle; }
    Needs needs() const override { return {.max_logit = true}; }
    PolicyCost do_cost(const Phase& phase) const override { return oracle_cost(phase.problem); }
    Mirror<3> score(const SelectorLayer&, const SelectorChunk& chunk) override {
        return chunk.max_logit();
    }
};

}  // namespace

std::unique_ptr<Selector> make_oracle_logit_selector() {
    return std::make_unique<OracleLogitSelector>();
}

}  // namespace msa
