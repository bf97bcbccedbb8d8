// SPDX-License-Identifier: MIT
#include <optional>

#include "core/select/block_vectors.h"
#include "core/select/cost.h"
#include "core/select/query_blocks.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class BlockSparseSelector final : public Selector {
public:
    std::string_view name() const override { return "minference-bs"; }
    std::string_view rule() const override {
        return "block-sparse: mean(q) of the query's block . mean(k), summed over the group's "
               "heads, one choice for the whole query block (MInference, arXiv 2407.02490)";
    }
    Family family() const override { return Family::queries; }
    Needs needs() const override { return {.queries = true}; }
    PolicyCost do_cost(const Phase& phase) const override {
        return per_group(phase.problem, phase.prompt > 0 ? blocks_seen(phase.problem)
                                                         : block_pairs(phase.problem));
    }
    void prepare(const SelectorLayer& layer) override {
        vectors_.emplace(layer, layer.problem.head_dim, mean_of_keys, add_query);
    }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Tensor<float, 3> means = query_block_means(layer, chunk);
        return {layer.backend, vectors_->score(layer, chunk.problem, means)};
    }

private:
    std::optional<BlockVectors> vectors_;
};

}  // namespace

std::unique_ptr<Selector> make_minference_block_sparse_selector() {
    return std::make_unique<BlockSparseSelector>();
}

}  // namespace msa
