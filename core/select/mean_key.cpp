// SPDX-License-Identifier: MIT
#include <optional>

#include "core/select/block_vectors.h"

namespace msa {
namespace {

class MeanKeySelector final : public Selector {
public:
    std::string_view name() const override { return "mean-key"; }
    std::string_view rule() const override {
        return "q . mean(k) of the block's visible tokens, summed over the group's heads (the "
               "gate of MoBA at GQA-group granularity)";
    }
    void prepare(const SelectorLayer& layer) override {
        vectors_.emplace(layer.problem.head_dim, mean_of_keys, add_query);
        vectors_->prepare(layer);
    }
    void score(const SelectorLayer& layer, const SelectorChunk& chunk,
               View<float, 3> scores) override {
        vectors_->score(layer, chunk.problem, chunk.q, scores);
    }

private:
    std::optional<BlockVectors> vectors_;
};

}  // namespace

std::unique_ptr<Selector> make_mean_key_selector() { return std::make_unique<MeanKeySelector>(); }

}  // namespace msa
