// SPDX-License-Identifier: MIT
#include "core/error.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class IndexSelector final : public Selector {
public:
    std::string_view name() const override { return "index"; }
    std::string_view rule() const override {
        return "the Index Branch: maximum over the block of index_q . index_k / sqrt(didx) "
               "(eq:msa-index-score)";
    }
    Needs needs() const override { return {.index = true}; }

    void score(const SelectorLayer& layer, const SelectorChunk& chunk,
               View<float, 3> scores) override {
        Backend& backend = layer.backend;
        if (backend.space() == Space::host) {
            backend.index_scores(chunk.problem, {chunk.index_q, layer.index_k}, scores);
            backend.finish();
            return;
        }
        Tensor<float, 3> there = backend.make<float, 3>(scores.shape());
        backend.index_scores(chunk.problem, {chunk.index_q, layer.index_k}, there);
        backend.download(there.view(), scores);
    }
};

}  // namespace

std::unique_ptr<Selector> make_index_selector() { return std::make_unique<IndexSelector>(); }

}  // namespace msa
