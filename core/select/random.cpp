// SPDX-License-Identifier: MIT
#include "core/select/selector.h"

namespace msa {
namespace {

/// Mixes 64 bits (the finalizer of SplitMix64).
uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15U;
    x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31U);
}

class RandomSelector final : public Selector {
public:
    std::string_view name() const override { return "random"; }
    std::string_view rule() const override {
        return "uniformly random visible blocks, a function of seed, token, group and block alone";
    }
    void score(const SelectorLayer& layer, const SelectorChunk& chunk,
               View<float, 3> scores) override {
        for (int64_t i = 0; i < scores.extent(0); ++i) {
            const uint64_t row = mixed(mixed(layer.seed) ^
                                       static_cast<uint64_t>(chunk.tokens[static_cast<size_t>(i)]));
            for (int64_t r = 0; r < scores.extent(1); ++r)
                for (int64_t b = 0; b < scores.extent(2); ++b)
                    scores(i, r, b) = static_cast<float>(
                        mixed(row ^ static_cast<uint64_t>(r * scores.extent(2) + b)) >> 40U);
        }
    }
};

}  // namespace

std::unique_ptr<Selector> make_random_selector() { return std::make_unique<RandomSelector>(); }

}  // namespace msa
