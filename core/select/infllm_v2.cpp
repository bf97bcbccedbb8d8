// SPDX-License-Identifier: MIT
#include "core/select/compressed_keys.h"

namespace msa {
namespace {

float largest(const Pieces& of, std::span<const float> attention, int64_t begin, int64_t end) {
    float top = 0;
    const int64_t pieces = std::ssize(attention);
    for (int64_t n = of.first_ending_after(begin); n < std::min(pieces, ceil_div(end, of.stride));
         ++n)
        if (of.shared(n, begin, end) > 0) top = std::max(top, attention[static_cast<size_t>(n)]);
    return top;
}

class InfLlmV2Selector final : public CompressedKeysSelector {
public:
    InfLlmV2Selector() : CompressedKeysSelector(largest) {}
    std::string_view name() const override { return "infllm-v2"; }
    std::string_view rule() const override {
        return "softmax over mean-pooled pieces of 32 keys every 16, summed over the group's "
               "heads, maximum over the pieces that overlap the block; the first block and the "
               "newest "
               "forced, 33 of 96 blocks (InfLLM-V2, arXiv 2509.24663)";
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        return force_share(asked, 1, 32, 96);
    }
};

}  // namespace

std::unique_ptr<Selector> make_infllm_v2_selector() { return std::make_unique<InfLlmV2Selector>(); }

}  // namespace msa
