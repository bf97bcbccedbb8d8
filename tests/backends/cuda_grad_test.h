// SPDX-License-Identifier: MIT
// What the tests of the cuda backend's gradients share: comparisons and fixtures.
#pragma once

#include <gtest/gtest.h>

#include <cmath>

#include "core/tolerance.h"
#include "tests/support/compare.h"
#include "tests/support/runner.h"

namespace msa::test {

struct Gradient {
    Tensor<float, 3> d_q, d_k, d_v;
    Tensor<float, 1> d_sinks;
};

inline void expect_identical(const Gradient& got, const Gradient& want) {
    EXPECT_TRUE(identical(got.d_q, want.d_q));
    EXPECT_TRUE(identical(got.d_k, want.d_k));
    EXPECT_TRUE(identical(got.d_v, want.d_v));
    EXPECT_TRUE(identical(got.d_sinks, want.d_sinks));
}

/// In Euclidean norm. P or dS, the part in a slot and the result are each rounded to `element`, by
/// at most half of storage_roundoff; errors of terms are independent and add up as the terms do.
inline testing::AssertionResult is_rounded(const Tensor<float, 3>& got,
                                           const Tensor<float, 3>& want, Element element) {
    double error = 0, size = 0;
    for (int64_t i = 0; i < want.size(); ++i) {
        const double g = got.data()[i], w = want.data()[i];
        if (std::isnan(g) != std::isnan(w))
            return testing::AssertionFailure()
                   << "NaN in other places: " << position<3>(got.shape(), i) << " is " << g
                   << ", want " << w;
        if (std::isnan(w)) continue;
        error += (g - w) * (g - w);
        size += w * w;
    }
    const double bound = 1.5 * storage_roundoff(element);
    if (std::sqrt(error) <= bound * std::sqrt(size)) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "off by " << std::sqrt(error / size) << " of its norm";
}

inline void expect_rounded(const Gradient& got, const Gradient& want, Element element) {
    EXPECT_TRUE(is_rounded(got.d_q, want.d_q, element));
    EXPECT_TRUE(is_rounded(got.d_k, want.d_k, element));
    EXPECT_TRUE(is_rounded(got.d_v, want.d_v, element));
}

class CudaGrad : public testing::Test {
protected:
    void SetUp() override {
        MSA_SKIP_UNLESS_USABLE(name());
        backend_ = make_backend(name());
    }
    virtual std::string name() const { return "cuda"; }
    /// Why the tuned kernel does not answer here; empty: it does.
    std::string no_tuned_kernel(const Problem& p, int64_t top_k) const {
        return backend_
            ->supports(p, SparseAttentionGradRequest{.element = Element::bf16,
                                                     .top_k = top_k,
                                                     .order = LoopOrder::kv_outer,
                                                     .saved = Element::bf16})
            .why_not;
    }

    std::unique_ptr<Backend> backend_;
};
class CudaGradCases : public CudaGrad, public testing::WithParamInterface<HalfCase> {
protected:
    std::string name() const override { return GetParam().backend; }
    Element element() const { return GetParam().element; }
};

}  // namespace msa::test
