// SPDX-License-Identifier: MIT
// Quest's bound with pages of the block as blocks of their own.
#include <algorithm>
#include <numeric>
#include <optional>

#include "core/select/block_vectors.h"
#include "core/select/cost.h"
#include "core/select/quest_bound.h"
#include "core/select/rows_held.h"
#include "core/select/selector.h"

namespace msa {
namespace {

class QuestPagesSelector final : public Selector {
public:
    std::string_view name() const override { return "quest-pages"; }
    std::vector<std::string_view> other_names() const override { return {"lserve"}; }
    std::string_view rule() const override {
        return "largest upper bound of q . k of the block's pages of 16 tokens, sum over channels "
               "of max(q_d min k_d, q_d max k_d), summed over the group's heads (hierarchical "
               "paging of LServe, arXiv 2502.14866)";
    }
    std::string_view note() const override {
        return "chosen anew for every query, which the source does for every fourth";
    }
    std::vector<PolicyOption> options() override {
        return {{"page", "tokens of a page", &page_, 1, kMaxBlockSize}};
    }
    Family family() const override { return Family::keys; }
    PolicyCost do_cost(const Phase& phase) const override {
        return per_group(phase.problem, 2 * blocks_seen(in_pages(phase.problem)));
    }
    void prepare(const SelectorLayer& layer) override {
        pages_ = in_pages(layer.problem);
        vectors_.emplace(of_pages(layer), 2 * pages_.head_dim, quest_bounds, add_quest_parts);
    }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
        const int64_t step = rows_held(p.kv_heads * pages_.blocks());
        for (int64_t begin = 0; begin < p.queries(); begin += step) {
            const QueryRange range{begin, std::min(begin + step, p.queries())};
            const int64_t count = range.end - begin;
            score_part(layer, p.with_queries(range), chunk.q.host().slice(begin, count),
                       scores.view().slice(begin, count));
        }
        return {layer.backend, std::move(scores)};
    }

private:
    /// The problem with pages as blocks; a block is a whole number of them.
    Problem in_pages(Problem p) const {
        p.block_size = std::gcd(p.block_size, page_);
        return p;
    }

    SelectorLayer of_pages(const SelectorLayer& layer) const {
        return {.problem = pages_, .backend = layer.backend, .k = layer.k};
    }

    void score_part(const SelectorLayer& layer, const Problem& p, View<const float, 3> q,
                    View<float, 3> scores) const {
        const Tensor<float, 3> bounds = vectors_->score(of_pages(layer), in_pages(p), q);
        const int64_t per_block = p.block_size / pages_.block_size;
        const std::vector<KeyRange>& visible = visible_keys(p);
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i) {
            const int64_t keys = visible[static_cast<size_t>(i)].count;
            const int64_t pages = visible_blocks(keys, pages_.block_size);
            for (int64_t r = 0; r < p.kv_heads; ++r)
                for (int64_t b = 0; b < visible_blocks(keys, p.block_size); ++b) {
                    const float* first = &bounds(i, r, b * per_block);
                    scores(i, r, b) = *std::max_element(
                        first, first + std::min(per_block, pages - b * per_block));
                }
        }
    }

    int64_t page_ = 16;
    Problem pages_;  // of the layer
    std::optional<BlockVectors> vectors_;
};

}  // namespace

std::unique_ptr<Selector> make_quest_pages_selector() {
    return std::make_unique<QuestPagesSelector>();
}

}  // namespace msa
