// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/select/selector.h"

namespace msa {
namespace {

class WindowSelector final : public Selector {
public:
    std::string_view name() const override { return "window"; }
    std::vector<std::string_view> other_names() const override { return {"a-shape"}; }
    std::string_view rule() const override {
        return "the first block and the newest blocks, k in all (the sliding-window baseline of "
               "app:prelim-swa in whole blocks; window-tokens counts tokens)";
    }
    Family family() const override { return Family::position; }
    PolicyCost do_cost(const Phase&) const override { return {}; }
    Mirror<3> score(const SelectorLayer& layer, const SelectorChunk& chunk) override {
        Tensor<float, 3> scores(
            {chunk.problem.queries(), chunk.problem.kv_heads, chunk.problem.blocks()});
#pragma omp parallel for num_threads(layer.backend.host_threads())
        for (int64_t i = 0; i < scores.extent(0); ++i)
            for (int64_t r = 0; r < scores.extent(1); ++r)
                for (int64_t b = 0; b < scores.extent(2); ++b)
                    scores(i, r, b) = static_cast<float>(b);
        return {layer.backend, std::move(scores)};
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        asked.forced_first =
            std::max(asked.forced_first, std::min<int64_t>(1, asked.top_k - asked.forced_local));
        return asked;
    }
};

}  // namespace

std::unique_ptr<Selector> make_window_selector() { return std::make_unique<WindowSelector>(); }

}  // namespace msa
