// SPDX-License-Identifier: MIT
// One comparison with the reference per operation, shared by the tests of the operation and by the
// test that injects errors.
#pragma once

#include <gtest/gtest.h>

#include "tests/support/runner.h"

namespace msa::test {

/// The tolerances of tolerance.h for the sizes and values of a case.
struct Bounds {
    double out, lse, scores, mass, max_logit, kl, d_index_q, d_index_k;
};
Bounds bounds(const Problem&, const Operands&, Teacher = Teacher::mean);
/// Where attention's outputs are bf16, and their slots too.
Bounds bf16_bounds(const Problem&, const Operands&);

testing::AssertionResult matches(const Attention& got, const Attention& want, const Bounds&);
testing::AssertionResult matches(const BlockMass& got, const BlockMass& want, const Bounds&);
testing::AssertionResult matches(const IndexKl& got, const IndexKl& want, const Bounds&);

}  // namespace msa::test
