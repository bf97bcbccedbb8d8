// SPDX-License-Identifier: MIT
#include "core/select/selector.h"

namespace msa {
namespace {

class WindowSelector final : public Selector {
public:
    std::string_view name() const override { return "window"; }
    std::string_view rule() const override {
        return "the first block and the newest blocks, k in all (the sliding-window baseline of "
               "app:prelim-swa)";
    }
    void score(const SelectorLayer&, const SelectorChunk&, View<float, 3> scores) override {
        for (int64_t i = 0; i < scores.extent(0); ++i)
            for (int64_t r = 0; r < scores.extent(1); ++r)
                for (int64_t b = 0; b < scores.extent(2); ++b)
                    scores(i, r, b) = static_cast<float>(b);
    }
    SelectionRule adjust(SelectionRule asked) const override {
        return force(asked, 1, asked.forced_local);
    }
};

}  // namespace

std::unique_ptr<Selector> make_window_selector() { return std::make_unique<WindowSelector>(); }

}  // namespace msa
