// SPDX-License-Identifier: MIT
#include "tests/support/compare.h"

namespace msa::test {

testing::AssertionResult selection_follows(const Problem& p, const SelectionRule& rule,
                                           View<const float, 3> scores, View<const int32_t, 3> ids,
                                           double bound) {
    const std::string fault = selection_fault(p, rule, scores, ids, bound);
    if (fault.empty()) return testing::AssertionSuccess();
    return testing::AssertionFailure() << fault;
}

}  // namespace msa::test
