// SPDX-License-Identifier: MIT
// The gate of SeerAttention-R as a selector, against its rule written out.
#include <numeric>

#include "core/error.h"
#include "core/select/token_selector.h"
#include "tests/core/select/policy.h"

namespace msa::test {
namespace {

class SeerAttention : public Policy {
protected:
    static constexpr int64_t kDims = 32;

    SeerAttention() {
        learned_.gate_dim = kDims;
        read_learned_ = [this](LearnedOperand operand, std::span<const int64_t> tokens) {
            const Tensor<float, 3>& all = operand == LearnedOperand::gate_q ? gate_q_ : gate_k_;
            std::vector<int64_t> rows(tokens.begin(), tokens.end());
            if (operand == LearnedOperand::gate_k) {
                rows.resize(static_cast<size_t>(all.extent(0)));
                std::iota(rows.begin(), rows.end(), 0);
            }
            return rows_of(all, rows);
        };
    }

    /// The softmax over the blocks before the query's own, one after the other.
    double gate(int64_t token, int64_t r, int64_t block) const {
        const int64_t own = blocks(token) - 1;
        if (block >= own) return 0;
        const int64_t first = token < first_ ? 0 : (first_ + 15) / 16;
        double mine = 0, sum = 0;
        for (int64_t b = 0; b < own; ++b) {
            double dot = 0;
            for (int64_t d = 0; d < kDims; ++d)
                dot += double{gate_q_(token, r, d)} * double{gate_k_(first + b, r, d)};
            const double weight = std::exp(dot / std::sqrt(double{kDims}));
            sum += weight;
            if (b == block) mine = weight;
        }
        return mine / sum;
    }
    double bound() const {
        const double logit = logit_bound(1 / std::sqrt(double{kDims}), largest_norm<3>(gate_q_),
                                         largest_norm<3>(gate_k_), kDims);
        return weight_bound(logit, 14);
    }

    // 210 and 75 tokens are 14 and 5 blocks of 16.
    Tensor<float, 3> gate_q_ = normal<3>({p_.keys(), 2, kDims}, 6),
                     gate_k_ = normal<3>({14 + 5, 2, kDims}, 7);
};

TEST_F(SeerAttention, IsTheSoftmaxOverTheBlocksBeforeTheOwn) {
    const auto want = [&](int64_t i, int64_t r, int64_t b) { return gate(i, r, b); };
    expect_scores(scores("seerattention"), bound(), want);
    expect_scores(scores("seerattention-r"), bound(), want);
    expect_chunks_do_not_matter("seerattention");
    const double before = gate(209, 1, 7);
    gate_k_(7, 1, 3) += 1;  // a key of the first sequence has a say in it alone
    EXPECT_GT(std::fabs(gate(209, 1, 7) - before), 10 * bound());
    expect_scores(scores("seerattention"), bound(), want);
}

TEST_F(SeerAttention, ThresholdKeepsWhatIsAbove) {
    const Tensor<float, 3> got = scores("seerattention:threshold=0.125");
    int kept = 0;
    for (int64_t i = 0; i < p_.queries(); ++i)
        for (int64_t r = 0; r < 2; ++r)
            for (int64_t b = 0; b < blocks(i); ++b) {
                const double probability = gate(i, r, b);
                if (std::fabs(probability - 0.125) <= bound()) continue;
                EXPECT_EQ(got(i, r, b) > 0, probability > 0.125) << i << ' ' << r << ' ' << b;
                kept += got(i, r, b) > 0 ? 1 : 0;
            }
    EXPECT_GT(kept, 100);
    const std::unique_ptr<Selector> selector = make_selector("seerattention:threshold=0.125");
    EXPECT_EQ(selector->adjust({.top_k = 4}, 0).top_k, kUneven);
    EXPECT_TRUE(selector->needs().rule);
    EXPECT_EQ(make_selector("seerattention")->adjust({.top_k = 4}, 0).top_k, 4);
}

TEST_F(SeerAttention, RefusesTheKeysOfAnotherBlockSize) {
    p_.block_size = 32;
    try {
        scores("seerattention");
        ADD_FAILURE();
    } catch (const InputError& error) {
        EXPECT_STREQ(error.what(),
                     "gate_k has 19 blocks, the sequences have 10 of 32 tokens; they must agree");
    }
}

TEST_F(SeerAttention, CostsTheBlocksBeforeTheOwn) {
    // Of 210 tokens, 16 see each of 0 to 12 blocks before their own and 2 see 13; of 75, 16 see
    // each of 0 to 3 and 11 see 4.
    const double pairs = 16 * 78 + 2 * 13 + 16 * 6 + 11 * 4;
    const PolicyCost cost = make_policy("seerattention")->cost({p_, 0, learned_});
    EXPECT_EQ(cost.flops, 2 * 2 * kDims * pairs);
    EXPECT_EQ(cost.bytes, 2 * 2 * kDims * pairs);
}

}  // namespace
}  // namespace msa::test
