// SPDX-License-Identifier: MIT
#include <algorithm>
#include <limits>

#include "core/cpu/top_blocks.h"
#include "core/select/received_mass.h"

namespace msa {
namespace {

constexpr float kEvicted = -std::numeric_limits<float>::infinity();

class H2oSelector final : public Selector {
public:
    std::string_view name() const override { return "h2o"; }
    std::string_view rule() const override {
        return "attention that all queries before have paid to the block among the blocks that "
               "were kept for them, mean over the group's heads; a block once evicted is lost; "
               "half "
               "the budget is the newest blocks (H2O, sequential, arXiv 2306.14048)";
    }
    Needs needs() const override { return {.mass = true, .queries = true, .rule = true}; }
    void prepare(const SelectorLayer&) override { sequence_ = -1; }
    void score(const SelectorLayer& layer, const SelectorChunk& chunk,
               View<float, 3> scores) override {
        const Problem& p = chunk.problem;
        const std::vector<KeyRange> visible = visible_keys(p);
        const std::vector<int64_t> sequence = query_sequences(p);
        for (int64_t i = 0; i < p.queries(); ++i) {
            if (sequence[static_cast<size_t>(i)] != sequence_) {
                sequence_ = sequence[static_cast<size_t>(i)];
                received_ = prompt_mass(layer, sequence_);
            }
            std::copy_n(received_.data(), received_.size(), scores[i].data());
            const int64_t blocks =
                visible_blocks(visible[static_cast<size_t>(i)].count, p.block_size);
            for (int64_t r = 0; r < p.kv_heads; ++r)
                step(adjust(layer.rule), blocks, chunk.mass[i][r], received_.view()[r]);
        }
    }
    SelectionRule adjust(SelectionRule asked) const override {
        return force(asked, 0, asked.top_k / 2);
    }

private:
    /// One query of one group: the blocks that the rule keeps receive its attention, normalised
    /// over them; the others are evicted.
    static void step(const SelectionRule& rule, int64_t blocks, View<const float, 1> mass,
                     View<float, 1> received) {
        cpu::TopBlocks top(rule);
        Tensor<int32_t, 1> ids({rule.top_k});
        top.start(blocks);
        for (int64_t b = 0; b < blocks; ++b) top.offer(b, received(b));
        top.finish(ids);
        const int32_t *begin = ids.data(), *end = std::find(begin, begin + ids.size(), kNoBlock);
        float kept = 0;
        for (const int32_t* id = begin; id != end; ++id) kept += mass(*id);
        for (int64_t b = 0; b < blocks; ++b) {
            const bool survives = std::binary_search(begin, end, static_cast<int32_t>(b));
            received(b) = survives ? received(b) + (kept > 0 ? mass(b) / kept : 0) : kEvicted;
        }
    }

    int64_t sequence_ = -1;
    Tensor<float, 2> received_;  // [Hkv, B], kEvicted where the block is gone
};

}  // namespace

std::unique_ptr<Selector> make_h2o_selector() { return std::make_unique<H2oSelector>(); }

}  // namespace msa
