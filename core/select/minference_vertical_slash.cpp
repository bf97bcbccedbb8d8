// SPDX-License-Identifier: MIT
#include <optional>

#include "core/select/cost.h"
#include "core/select/selector.h"
#include "core/select/vertical_slash.h"

namespace msa {
namespace {

class VerticalSlashSelector final : public Selector {
public:
    std::string_view name() const override { return "minference-vs"; }
    std::string_view rule() const override {
        return "vertical-slash: attention of the prompt's last 64 queries on the block's keys and "
               "on the distances at which the query sees them, summed over the group's heads; "
               "first and local block forced (MInference, arXiv 2407.02490)";
    }
    std::string_view note() const override {
        return "keys and distances share one budget, the source fixes a size for each; the source "
               "decodes densely";
    }
    std::vector<PolicyOption> options() override {
        return {{"probe", "queries that decide", &probe_, 1, 65536}};
    }
    Family family() const override { return Family::queries; }
    Needs needs() const override { return {.queries = true}; }
    PolicyCost do_cost(const Phase& phase) const override {
        return probe_cost(phase.problem, probe_, phase.prompt);
    }
    void prepare(const SelectorLayer& layer) override { lines_.emplace(layer, probe_); }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange>& visible = visible_keys(p);
        const std::vector<int64_t> sequence = query_sequences(p);
        Tensor<float, 3> scores({p.queries(), p.kv_heads, p.blocks()});
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < p.queries(); ++i) {
            const auto row = static_cast<size_t>(i);
            for (int64_t r = 0; r < p.kv_heads; ++r)
                for (int64_t b = 0; b < visible_blocks(visible[row].count, p.block_size); ++b)
                    scores(i, r, b) = lines_->score(sequence[row], r, visible[row].count - 1, b);
        }
        return {layer.backend, std::move(scores)};
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override { return force(asked, 1, 1); }

private:
    int64_t probe_ = 64;
    std::optional<VerticalSlash> lines_;
};

}  // namespace

std::unique_ptr<Selector> make_minference_vertical_slash_selector() {
    return std::make_unique<VerticalSlashSelector>();
}

}  // namespace msa
