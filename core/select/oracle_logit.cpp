// SPDX-License-Identifier: MIT
#include <algorithm>

#include "core/select/selector.h"

namespace msa {
namespace {

class OracleLogitSelector final : public Selector {
public:
    std::string_view name() const override { return "oracle-logit"; }
    std::string_view rule() const override {
        return "the blocks of highest Main Branch logit, maximum over the block's tokens and the "
               "group's heads";
    }
    Needs needs() const override { return {.max_logit = true}; }
    void score(const SelectorLayer&, const SelectorChunk& chunk, View<float, 3> scores) override {
        std::copy_n(chunk.max_logit.data(), scores.size(), scores.data());
    }
};

}  // namespace

std::unique_ptr<Selector> make_oracle_logit_selector() {
    return std::make_unique<OracleLogitSelector>();
}

}  // namespace msa
