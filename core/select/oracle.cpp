// SPDX-License-Identifier: MIT
#include "core/select/cost.h"
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
    Family family() const override { return Family::oracle; }
    PolicyCost do_cost(const Phase& phase) const override { return oracle_cost(phase.problem); }
    Mirror<3> score(const SelectorLayer&, const SelectorChunk& chunk) override {
        return chunk.mass();
    }
};

}  // namespace

std::unique_ptr<Selector> make_oracle_selector() { return std::make_unique<OracleSelector>(); }

}  // namespace msa
