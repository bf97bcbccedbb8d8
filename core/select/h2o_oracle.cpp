// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/select/received_mass.h"

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
    Needs needs() const override { return {.mass = true, .queries = true}; }
    void prepare(const SelectorLayer&) override { sequence_ = -1; }
    void score(const SelectorLayer& layer, const SelectorChunk& chunk,
               View<float, 3> scores) override {
        const std::vector<int64_t> sequence = query_sequences(chunk.problem);
        for (int64_t i = 0; i < scores.extent(0); ++i) {
            if (sequence[static_cast<size_t>(i)] != sequence_) {
                sequence_ = sequence[static_cast<size_t>(i)];
                received_ = prompt_mass(layer, sequence_);
            }
            std::copy_n(received_.data(), received_.size(), scores[i].data());
            for (int64_t at = 0; at < received_.size(); ++at)
                received_.data()[at] += chunk.mass[i].data()[at];
        }
    }
    SelectionRule adjust(SelectionRule asked) const override {
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
