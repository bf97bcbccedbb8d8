// SPDX-License-Identifier: MIT
#pragma once

#include "tests/support/runner.h"

namespace msa::test {

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
