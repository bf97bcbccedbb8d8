// SPDX-License-Identifier: MIT
#include <optional>

#include "core/select/block_vectors.h"
#include "core/select/query_blocks.h"

namespace msa {
namespace {

class BlockSparseSelector final : public Selector {
public:
    std::string_view name() const override { return "minference-bs"; }
    std::string_view rule() const override {
        return "block-sparse: mean(q) of the query's block . mean(k), summed over the group's "
               "heads, one choice for the whole query block (MInference, arXiv 2407.02490)";
    }
    Needs needs() const override { return {.queries = true}; }
    void prepare(const SelectorLayer& layer) override {
        vectors_.emplace(layer.problem.head_dim, mean_of_keys, add_query);
        vectors_->prepare(layer);
    }
    void score(const SelectorLayer& layer, const SelectorChunk& chunk,
               View<float, 3> scores) override {
        const Tensor<float, 3> means = query_block_means(layer, chunk);
        vectors_->score(layer, chunk.problem, means, scores);
    }

private:
    std::optional<BlockVectors> vectors_;
};

}  // namespace

std::unique_ptr<Selector> make_minference_block_sparse_selector() {
    return std::make_unique<BlockSparseSelector>();
}

}  // namespace msa
