// SPDX-License-Identifier: MIT
// Policies that keep single tokens, not blocks. No block-sparse kernel can follow them, so they
// serve as baselines beside the selectors and are reported with the blocks that their choice
// touches.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/select/policy.h"

namespace msa {

/// The positions that each query keeps, ascending; one choice for all heads.
using KeptTokens = std::vector<std::vector<int64_t>>;

class TokenSelector : public Policy {
public:
    /// The positions that the chunk's queries keep at each budget; a query keeps at most that many
    /// of those that it sees.
    virtual std::vector<KeptTokens> select(const SelectorLayer&, const SelectorChunk&,
                                           std::span<const int64_t> budgets) const = 0;
};

/// Visible tokens in k = `top_k` blocks, the own block among them, of a query that sees `visible`
/// keys. Token policies get the mean of this over all compared queries as their budget. So both
/// kinds read equally many tokens, and a window has one length.
int64_t readable_tokens(int64_t top_k, int64_t block_size, int64_t visible);

/// As make_selector(); null if no token policy has that name.
std::unique_ptr<TokenSelector> find_token_selector(std::string_view label);
std::vector<std::string> list_token_selectors();

/// A policy of either kind. Throws InputError naming all if there is none of that name.
std::unique_ptr<Policy> make_policy(std::string_view label);
/// Selectors of blocks, then of tokens, in the order of the documentation.
std::vector<std::string> list_policies();

}  // namespace msa
