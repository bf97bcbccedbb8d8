// SPDX-License-Identifier: MIT
// Selectors: policies that rank the key blocks of every query and group. A selector gives scores;
// Backend::select_blocks turns them into ids, so that all selectors share budget, forced blocks and
// tie rule. Queries come in chunks (Problem::with_queries) against all keys of the layer, in order.
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
    /// Scores [Nq, Hkv, B], on the host or in the backend's space, wherever the policy has them:
    /// higher is kept first, -inf is no candidate. Only blocks that a query sees are read. Where
    /// needs().uses_rule they are those of layer.rule, one of the rules that prepare was told; each
    /// rule is asked for once with a chunk. Chunks come in order, where needs().in_order with no
    /// query left out that the caller looks at; else scores are the same whatever chunks came
    /// before.
    virtual Mirror<3> score(const SelectorLayer&, const SelectorChunk&) = 0;
    /// ids [Nq, Hkv, k] by an adjusted rule, in the backend's space: select_blocks of the scores,
    /// or the same ids in a shorter way, for callers who do not want the scores.
    virtual Tensor<int32_t, 3> select(const SelectorLayer&, const SelectorChunk&,
                                      const SelectionRule&);
    /// The selection rule that this policy makes of the one asked for; the budget k stays, but for
    /// policies that spend it unevenly over the queries (kUneven). prompt: as in SelectorLayer.
    virtual SelectionRule adjust(SelectionRule asked, int64_t prompt) const;
};

/// top_k of a policy whose scores decide how many blocks a query keeps: all above -inf.
inline constexpr int64_t kUneven = std::numeric_limits<int64_t>::max();

/// `asked`, with at least so many oldest and newest blocks forced; a slot that is chosen stays free
/// where there are two or more.
SelectionRule force(SelectionRule asked, int64_t first, int64_t local);

/// The same where the source forces `first` + `local` blocks of `of`: of smaller budgets, forced
/// blocks take the same share, rounded. The local block comes first, then the oldest, then further
/// newest ones.
SelectionRule force_share(SelectionRule asked, int64_t first, int64_t local, int64_t of);

/// By a name, or one of other_names(), and options behind it ("sparq:rank=16"). Throws InputError
/// naming the known selectors, or the selector's options.
std::unique_ptr<Selector> make_selector(std::string_view label);
/// All names, in the order of the documentation.
std::vector<std::string> list_selectors();
/// Those that score a query from itself and its keys alone, so that any queries, and values, may be
/// left out.
std::vector<std::string> list_pointwise_selectors();

}  // namespace msa
