// SPDX-License-Identifier: MIT
// Heads of more channels than an index head has: selectors that score by products of vectors ask
// the backend for parts of them.
#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class WideHeads : public Policy {
protected:
    void widen(int64_t dims) {
        p_.head_dim = dims;
        q_ = normal<3>({p_.keys(), 4, dims}, 1);
        k_ = normal<3>({p_.keys(), 2, dims}, 2);
        v_ = normal<3>(k_.shape(), 5);
    }
};

TEST_F(WideHeads, MeanKeysAreThoseOfAllChannels) {
    for (const int64_t dims : {256, 257, 271, 512}) {
        widen(dims);
        const auto want = [&](int64_t i, int64_t r, int64_t b) {
            const int64_t begin = start(i) + 16 * b,
                          end = start(i) + std::min(16 * b + 16, position(i) + 1);
            double sum = 0;
            for (int64_t j = begin; j < end; ++j)
                for (int64_t h = 2 * r; h < 2 * r + 2; ++h)
                    for (int64_t d = 0; d < dims; ++d)
                        sum += double{q_(i, h, d)} * double{k_(j, r, d)};
            return sum / static_cast<double>(end - begin);
        };
        const double products = 2 * largest_norm<3>(q_) * largest_norm<3>(k_);
        expect_scores(scores("mean-key"), gamma(static_cast<double>(dims) + 40) * products, want);
    }
}

TEST_F(WideHeads, AreTakenByTheSelectorsOfVectors) {
    for (const int64_t dims : {257, 271}) {
        widen(dims);
        for (const char* name :
             {"keydiff", "quest", "quest-pages", "infllm", "minference-bs", "xattention"})
            EXPECT_NO_THROW(scores(name)) << name << ", " << dims;
    }
}

}  // namespace
}  // namespace msa::test
