// SPDX-License-Identifier: MIT
// One comparison with the reference per operation, shared by the tests of the operation and by the
// test that injects errors.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "core/gradient_tolerance.h"
#include "tests/support/runner.h"

namespace msa::test {

/// The tolerances of core/tolerance.h and core/gradient_tolerance.h for the sizes and values of a
/// case.
struct Bounds {
    double out, lse, scores, mass, max_logit, kl, d_index_q, d_index_k, index_lse;
};
/// given_lse: of an index_kl that is given the lse of both branches.
Bounds bounds(const Problem&, const Operands&, Teacher = Teacher::mean, bool given_lse = false);
/// Where attention's outputs are bf16 or f16 like its operands, and their slots too.
Bounds half_bounds(const Problem&, const Operands&);

/// Of e4m3 operands that stand for the floats of `o`: tensor cores in the device's memory, float
/// arithmetic on the host.
Bounds e4m3_bounds(const Problem&, const Operands& o, const Backend&, Element stored);

testing::AssertionResult matches(const Attention& got, const Attention& want, const Bounds&);
testing::AssertionResult matches(const BlockMass& got, const BlockMass& want, const Bounds&);
testing::AssertionResult matches(const IndexKl& got, const IndexKl& want, const Bounds&);

/// Attention written out in double, and the loss sum d_out * out with its finite differences: no
/// backend has a part in it.
class AttentionLoss {
public:
    /// ids absent: dense.
    AttentionLoss(const Problem&, const Operands&, View<const int32_t, 3> ids,
                  View<const float, 3> d_out);
    Attention saved() const;
    const GradientSizes& sizes() const { return sizes_; }

    /// Central differences by one element of an operand, and the bound of their own error.
    struct Difference {
        double value, bound;
    };
    Difference by_q(int64_t i, int64_t h, int64_t d) const;
    Difference by_k(int64_t j, int64_t r, int64_t d) const;
    Difference by_v(int64_t j, int64_t r, int64_t d) const;
    Difference by_sink(int64_t h) const;

private:
    /// One row (query, head): its keys, their logits, and <d_out, v>.
    struct Row {
        int64_t i, h;
        std::vector<int64_t> tokens;
        std::vector<double> logits, values;
        double sink;  // -inf: none
    };
    /// Softmax weights, the sink's last; empty for none. Returns the lse.
    static double softmax(const Row&, std::vector<double>& weights);
    static double loss(const Row&);
    GradientSizes measure() const;
    /// change(row, delta) moves what depends on the element.
    template <typename Change>
    Difference difference(double slope, double rows, const Change& change) const;

    const Problem& p_;
    const Operands& o_;
    View<const float, 3> d_out_;
    std::vector<Row> rows_;
    GradientSizes sizes_{};
};

testing::AssertionResult matches(const AttentionGrad& got, const AttentionGrad& want,
                                 const GradientSizes&);

}  // namespace msa::test
