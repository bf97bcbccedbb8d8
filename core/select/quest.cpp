// SPDX-License-Identifier: MIT
#include <algorithm>
#include <optional>

#include "core/select/cost.h"
#include "core/select/quest_bound.h"
#include "core/select/selector.h"

namespace msa {

void quest_bounds(const KeyRows& keys, View<float, 1> bounds) {
    const int64_t dims = bounds.size() / 2;
    for (int64_t d = 0; d < dims; ++d) bounds(d) = bounds(dims + d) = keys[0][d];
    for (int64_t j = 1; j < keys.count; ++j)
        for (int64_t d = 0; d < dims; ++d) {
            bounds(d) = std::max(bounds(d), keys[j][d]);
            bounds(dims + d) = std::min(bounds(dims + d), keys[j][d]);
        }
}

void add_quest_parts(View<const float, 1> q, View<float, 1> parts) {
    for (int64_t d = 0; d < q.size(); ++d) {
        parts(d) += std::max(q(d), 0.0F);
        parts(q.size() + d) += std::min(q(d), 0.0F);
    }
}

namespace {

class QuestSelector final : public Selector {
public:
    std::string_view name() const override { return "quest"; }
    std::string_view rule() const override {
        return "upper bound of q . k in the block, sum over channels of max(q_d min k_d, q_d max "
               "k_d), summed over the group's heads (Quest, arXiv 2406.10774)";
    }
    std::string_view note() const override {
        return "one bound per block, the source's pages are 16 tokens";
    }
    Family family() const override { return Family::keys; }
    PolicyCost do_cost(const Phase& phase) const override {
        return per_group(phase.problem, 2 * blocks_seen(phase.problem));
    }
    void prepare(const SelectorLayer& layer) override {
        vectors_.emplace(layer, 2 * layer.problem.head_dim, quest_bounds, add_quest_parts);
    }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        return {layer.backend, vectors_->score(layer, chunk.problem, chunk.q.host())};
    }

private:
    std::optional<BlockVectors> vectors_;
};

}  // namespace

std::unique_ptr<Selector> make_quest_selector() { return std::make_unique<QuestSelector>(); }

}  // namespace msa
