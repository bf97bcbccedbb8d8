// SPDX-License-Identifier: MIT
// Selectors: policies that rank the key blocks of every query and group. A selector gives scores,
// and Backend::select_blocks turns them into ids. So all selectors share budget, forced blocks and
// tie rule. Queries come in order, in chunks (Problem::with_queries) against all keys of the layer.
// Each policy's rule, source and differences from it: core/select/README.md.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/select/policy.h"

namespace msa {

class Selector : public Policy {
public:
    /// Scores [Nq, Hkv, B], on the host or in the backend's space. Higher scores are kept first;
    /// -inf is no candidate. Only blocks that a query sees are read. If needs().uses_rule, scores
    /// are for layer.rule, one of the rules given to prepare; each rule is scored once per chunk.
    /// Chunks come in order. If needs().in_order, no query of a sequence may be left out; otherwise
    /// scores do not depend on earlier chunks.
    virtual Mirror<3> score(const SelectorLayer&, const SelectorChunk&) = 0;
    /// ids [Nq, Hkv, k] by an adjusted rule, in the backend's space: select_blocks of the scores,
    /// or the same ids computed faster without scores.
    virtual Tensor<int32_t, 3> select(const SelectorLayer&, const SelectorChunk&,
                                      const SelectionRule&);
    /// This policy's selection rule for the rule `asked`. top_k is unchanged, or kUneven for
    /// policies that spend the budget unevenly over the queries. prompt: as in SelectorLayer.
    virtual SelectionRule adjust(SelectionRule asked, int64_t prompt) const;
};

/// top_k of a policy that keeps all blocks with a score above -inf.
inline constexpr int64_t kUneven = std::numeric_limits<int64_t>::max();

/// `asked`, with at least `first` oldest and `local` newest blocks forced. With two or more slots,
/// one stays unforced.
SelectionRule force(SelectionRule asked, int64_t first, int64_t local);

/// The same for a source that forces `first` + `local` of `of` blocks: in smaller budgets forced
/// blocks take the same share, rounded. The local block comes first, then the oldest, then the
/// other newest ones.
SelectionRule force_share(SelectionRule asked, int64_t first, int64_t local, int64_t of);

/// Creates a selector by its name or one of other_names(), with options after it ("sparq:rank=16").
/// Throws InputError naming the known selectors, or the selector's options.
std::unique_ptr<Selector> make_selector(std::string_view label);
/// All names, in the order of the documentation.
std::vector<std::string> list_selectors();
/// The selectors that score a query from itself and its keys alone, so queries may be sampled and
/// values are not needed.
std::vector<std::string> list_pointwise_selectors();

}  // namespace msa
