// SPDX-License-Identifier: MIT
#pragma once

#include <ostream>
#include <vector>

#include "tests/support/runner.h"

namespace msa::test {

/// An operation with one of the orders that a subject has for it.
struct Way {
    bool sparse = false;
    LoopOrder order = LoopOrder::automatic;
};
inline std::ostream& operator<<(std::ostream& out, const Way& way) {
    return out << (way.sparse ? "sparse, " : "dense, ") << to_string(way.order);
}

inline std::vector<Way> ways(Runner& runner, const Problem& p, int64_t top_k) {
    std::vector<Way> all;
    const Backend& backend = runner.backend();
    if (backend.supports(p, DenseAttentionGradRequest{.element = runner.element()}).yes)
        all.push_back({});
    for (LoopOrder order : kLoopOrders)
        if (backend
                .supports(p,
                          SparseAttentionGradRequest{
                              .element = runner.element(), .top_k = top_k, .order = order})
                .yes)
            all.push_back({true, order});
    return all;
}

inline AttentionGrad run(Runner& runner, const Way& way, const Problem& p, const Operands& o,
                         View<const int32_t, 3> ids, const Backward& given) {
    return way.sparse ? runner.sparse_attention_grad(p, o, ids, given, way.order)
                      : runner.dense_attention_grad(p, o, given);
}

/// Fixture of the tests of attention's gradients that are written once per subject; those of a
/// backend without gradients are skipped.
class AttentionGradSubjectTest : public SubjectTest {
protected:
    void SetUp() override {
        if (!runner_.backend()
                 .supports(square_problem(8, 1, 1, 16, 16, 8),
                           DenseAttentionGradRequest{.element = runner_.element()})
                 .yes)
            GTEST_SKIP() << "the backend has no gradient of attention";
    }
    Runner runner_{GetParam()};
};

}  // namespace msa::test
