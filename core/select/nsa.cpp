// SPDX-License-Identifier: MIT
#include "core/select/compressed_keys.h"

namespace msa {
namespace {

/// Sum over the pieces that overlap the block, each times the tokens shared over the stride: the
/// double sum of the paper, for blocks of any size.
float importance(const Pieces& of, std::span<const float> attention, int64_t begin, int64_t end) {
    float sum = 0;
    const int64_t pieces = std::ssize(attention);
    for (int64_t n = of.first_ending_after(begin); n < std::min(pieces, ceil_div(end, of.stride));
         ++n)
        sum += attention[static_cast<size_t>(n)] * static_cast<float>(of.shared(n, begin, end)) /
               static_cast<float>(of.stride);
    return sum;
}

class NsaSelector final : public CompressedKeysSelector {
public:
    NsaSelector() : CompressedKeysSelector(importance) {}
    std::string_view name() const override { return "nsa"; }
    std::string_view rule() const override {
        return "softmax over mean-pooled pieces of 32 keys every 16, summed over the pieces in the "
               "block and the group's heads; the first and the two newest blocks forced, of "
               "smaller budgets than 16 blocks the same share (NSA's compressed importance, arXiv "
               "2502.11089)";
    }
    SelectionRule adjust(SelectionRule asked, int64_t) const override {
        return force_share(asked, 1, 2, 16);
    }
};

}  // namespace

std::unique_ptr<Selector> make_nsa_selector() { return std::make_unique<NsaSelector>(); }

}  // namespace msa
