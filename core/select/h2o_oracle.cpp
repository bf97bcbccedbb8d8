// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/select/attention_rows.h"
#include "core/select/cost.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class H2oOracleSelector final : public Selector {
public:
    std::string_view name() const override { return "h2o-oracle"; }
    std::string_view rule() const override {
        return "dense attention that all queries before have paid to the block, mean over the "
               "group's heads; half the budget is the newest blocks (H2O without eviction, arXiv "
               "2306.14048)";
    }
    Family family() const override { return Family::queries; }
    Needs needs() const override { return {.queries = true, .in_order = true}; }
    PolicyCost do_cost(const Phase& phase) const override { return oracle_cost(phase.problem); }
    void prepare(const SelectorLayer&) override { sequence_ = -1; }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const std::vector<int64_t> sequence = query_sequences(chunk.problem);
        const View<const float, 3> mass = chunk.mass().host();
        Tensor<float, 3> scores(mass.shape());
        for (int64_t i = 0; i < scores.extent(0); ++i) {
            if (sequence[static_cast<size_t>(i)] != sequence_) {
                sequence_ = sequence[static_cast<size_t>(i)];
                received_ = prompt_mass(layer, sequence_);
            }
            std::copy_n(received_.data(), received_.size(), &scores(i, 0, 0));
            for (int64_t at = 0; at < received_.size(); ++at)
                received_.data()[at] += mass[i].data()[at];
        }
        return {layer.backend, std::move(scores)};
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        return force(asked, 0, asked.top_k / 2);
    }

private:
    int64_t sequence_ = -1;
    Tensor<float, 2> received_;  // [Hkv, B]
};

}  // namespace

std::unique_ptr<Selector> make_h2o_oracle_selector() {
    return std::make_unique<H2oOracleSelector>();
}

}  // namespace msa
