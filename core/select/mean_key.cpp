// SPDX-License-Identifier: MIT
#include <optional>

#include "core/select/block_vectors.h"
#include "core/select/cost.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class MeanKeySelector final : public Selector {
public:
    std::string_view name() const override { return "mean-key"; }
    std::vector<std::string_view> other_names() const override { return {"moba"}; }
    std::string_view rule() const override {
        return "q . mean(k) of the block's visible tokens, summed over the group's heads (the "
               "gate of MoBA at GQA-group granularity)";
    }
    Family family() const override { return Family::keys; }
    PolicyCost do_cost(const Phase& phase) const override {
        return per_group(phase.problem, blocks_seen(phase.problem));
    }
    void prepare(const SelectorLayer& layer) override {
        vectors_.emplace(layer, layer.problem.head_dim, mean_of_keys, add_query);
    }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        return {layer.backend, vectors_->score(layer, chunk.problem, chunk.q.host())};
    }

private:
    std::optional<BlockVectors> vectors_;
};

}  // namespace

std::unique_ptr<Selector> make_mean_key_selector() { return std::make_unique<MeanKeySelector>(); }

}  // namespace msa
