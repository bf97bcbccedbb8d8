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

#include "core/select/policy.h"

namespace msa {

/// Of every query: the positions that it keeps, ascending, one choice for all heads.
using KeptTokens = std::vector<std::vector<int64_t>>;

class TokenSelector : public Policy {
public:
    /// What the queries of the chunk keep at each budget: at most so many positions of those that a
    /// query sees.
    virtual std::vector<KeptTokens> select(const SelectorLayer&, const SelectorChunk&,
                                           std::span<const int64_t> budgets) const = 0;
};

/// Tokens that k = `top_k` blocks hold for a query that sees `visible` keys: its own block as far
/// as it sees it. Token policies are given the mean of it over all queries that are compared, so
/// that both kinds read the same number and a window stays a window of one length.
int64_t readable_tokens(int64_t top_k, int64_t block_size, int64_t visible);

/// As make_selector(); nothing where no token policy has that name.
std::unique_ptr<TokenSelector> find_token_selector(std::string_view label);
std::vector<std::string> list_token_selectors();

/// A policy of either kind. Throws InputError naming all.
std::unique_ptr<Policy> make_policy(std::string_view label);
/// Selectors of blocks, then of tokens, in the order of the documentation.
std::vector<std::string> list_policies();

}  // namespace msa
