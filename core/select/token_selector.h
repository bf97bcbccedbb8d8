// SPDX-License-Identifier: MIT
// Policies that keep single tokens, not blocks: at the same budget they reach further than any
// block-sparse kernel can follow, so they stand beside the selectors as measures, with the blocks
// that their choice touches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/select/selector.h"

namespace msa {

class TokenSelector {
public:
    virtual ~TokenSelector() = default;
    virtual std::string_view name() const = 0;
    /// The rule in one sentence, with its source.
    virtual std::string_view rule() const = 0;
    virtual Selector::Needs needs() const { return {}; }
    /// Called once per layer, before its chunks.
    virtual void prepare(const SelectorLayer&) {}
    /// Positions that query `row` of the chunk keeps, ascending, one choice for all heads: of the
    /// `visible` it sees, at most `budget`. Called by many threads.
    virtual std::vector<int64_t> select(const SelectorChunk&, int64_t row, int64_t sequence,
                                        int64_t visible, int64_t budget) const = 0;
};

/// Nothing where no token policy has that name.
std::unique_ptr<TokenSelector> find_token_selector(std::string_view name);
std::vector<std::string> list_token_selectors();

std::unique_ptr<TokenSelector> make_streaming_llm_selector();
std::unique_ptr<TokenSelector> make_dsa_tokens_selector();

}  // namespace msa
